"""Whether the loss that is reported is that of all ranks: by its value."""

import itertools
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any

from lab.diagnose.audit.records import Record, line_of
from lab.diagnose.audit.together import Together
from lab.diagnose.finding import Finding
from lab.diagnose.words import ranks_in_words

Line = tuple[Any, Any]
ENOUGH = 3
"""So many reports whose numbers fit are no chance."""
NEAR = 4
"""How many reductions before a report it may be about."""
LONGEST = 5000
"""Steps over which a mean may go."""
FLOAT32 = 2e-6
"""The relative error of a loss in float32, after some sums."""


@dataclass
class Rank:
    """What a rank has told."""

    losses: dict[int, list[float]] = field(default_factory=dict)
    """By optimizer step: of each microbatch, as backward had it."""
    reductions: dict[int, Record] = field(default_factory=dict)
    reports: int = 0
    last: dict[Line, int] = field(default_factory=dict)
    """By line: the step of the last report."""


@dataclass
class Place:
    """A line that reports numbers."""

    own: Counter[int] = field(default_factory=Counter)
    """By rank: reports of what was its own loss alone."""
    whole: int = 0
    """Reports of what was the mean of all ranks."""
    first: dict[int, tuple[Record, float, float]] = field(default_factory=dict)
    """By rank: a report, the number, and what the mean of all ranks was."""


class Reports:
    """Compares the numbers that are reported with what the ranks' losses were."""

    checks = frozenset({"losses", "reductions", "reports", "batches"})

    def __init__(self, world_size: int) -> None:
        self._ranks = {rank: Rank() for rank in range(world_size)}
        self._together = Together(world_size)
        self._waiting: list[tuple[int, Record]] = []
        self._places: dict[Line, Place] = {}
        self._uneven: Counter[Line] = Counter()

    def feed(self, rank: int, record: Record) -> list[Finding]:
        """See `Judge`."""
        own = self._ranks[rank]
        if record["check"] == "losses":
            for step, value, _ in record["losses"]:
                if value is not None:
                    own.losses.setdefault(step, []).append(value)
        elif record["check"] == "reductions":
            own.reductions[record["number"]] = record
        elif record["check"] == "batches":
            self._together.feed(rank, record)
        else:
            self._waiting.append((rank, record))
        return []

    def close(self) -> list[Finding]:
        """All losses and all reports are known now."""
        if len(self._ranks) < 2:
            return []
        found = []
        for rank, record in self._waiting:
            found += self._judge_counts(rank, record)
            self._compare(rank, record)
        averaged = sum(place.whole for place in self._places.values())
        for place in self._places.values():
            # Where every rank reports its own, or has its own model, nobody takes it for all's.
            few = len(place.own) < len(self._ranks) and not self._together.apart
            for rank, count in place.own.items():
                if few and count >= ENOUGH and averaged < ENOUGH:
                    found.append(self._say_own(rank, place))
        return found

    def _compare(self, rank: int, record: Record) -> None:
        """Whose loss a report is about, if it is about one."""
        line = record["file"], record["line"]
        before = self._ranks[rank].last.get(line, 0)
        self._ranks[rank].last[line] = record["step"]
        place = self._places.setdefault(line, Place())
        own = None
        for number, digits in record["numbers"]:
            for mine, mean in self._candidates(rank, before, record["step"]):
                apart = abs(mine - mean) > 2 * 10**-digits + FLOAT32 * abs(mean)
                if apart and _is(number, digits, mean):
                    place.whole += 1
                    return
                if apart and _is(number, digits, mine):
                    own = own or (record, number, mean)
        if own is not None:
            place.own[rank] += 1
            place.first.setdefault(rank, own)

    def _candidates(self, rank: int, before: int, step: int) -> Iterator[tuple[float, float]]:
        """What a rank may have reported after a step: its own, and the mean of all ranks."""
        now, soon = [step], [step + 1]  # the optimizer may or may not have come to it
        since, ever = range(before + 1, step + 1), range(1, step + 1)
        for steps in (now, soon, since, ever):
            if not 0 < len(steps) <= LONGEST:
                continue
            each = [_losses(one, steps) for one in self._ranks.values()]
            if not all(each) or len({len(one) for one in each}) > 1:
                continue
            microbatches = max(len(one.losses[steps[-1]]) for one in self._ranks.values())
            for take in (lambda losses: losses[-1], fmean):
                values = [take(one) for one in each]
                for factor in {1, microbatches}:
                    yield values[rank] * factor, fmean(values) * factor

    def _judge_counts(self, rank: int, record: Record) -> list[Finding]:
        """Whether a report is a mean of the ranks' means, though their counts differ."""
        newest = record["reductions"]
        found = []
        for number in range(max(1, newest - NEAR + 1), newest + 1):
            each = [one.reductions.get(number) for one in self._ranks.values()]
            reductions = [one for one in each if one is not None]
            rows = [one["rows"] for one in reductions]
            lengths = {len(one["values"]) for one in reductions}
            if len(reductions) < len(each) or len(set(rows)) == 1 or min(rows) == 0:
                continue
            if len(lengths) > 1:
                continue
            for values in zip(*(one["values"] for one in reductions), strict=True):
                plain = fmean(values)
                weighted = sum(map(_product, values, rows)) / sum(rows)
                if any(
                    _is(reported, digits, plain) and abs(plain - weighted) > 2 * 10**-digits
                    for reported, digits in record["numbers"]
                ):
                    one = self._ranks[rank].reductions[number]
                    line = one["file"], one["line"]
                    self._uneven[line] += 1
                    if self._uneven[line] == ENOUGH:
                        found.append(self._say_uneven(one, record, rows, plain, weighted))
        return found

    def _say_own(self, rank: int, place: Place) -> Finding:
        record, number, mean = place.first[rank]
        others = ranks_in_words([one for one in self._ranks if one != rank])
        return Finding(
            kind="loss-not-averaged",
            severity="warning",
            summary=f"the loss that rank {rank} reports is its own alone, not the mean of all "
            f"{len(self._ranks)} ranks",
            ranks=(rank,),
            step=record["step"],
            **line_of(record),
            evidence=(
                f"at step {record['step']} it reported {number:g}, its own loss; with that of "
                f"{others} the mean was {mean:g}",
                f"{place.own[rank]} reports from this line were of its own loss",
            ),
            cure="average it first: dist.all_reduce(loss, op=dist.ReduceOp.AVG) of the detached "
            "loss, on all ranks",
        )

    def _say_uneven(
        self, at: Record, report: Record, rows: Sequence[int], plain: float, weighted: float
    ) -> Finding:
        counts = ", ".join(f"{count} on rank {rank}" for rank, count in enumerate(rows))
        return Finding(
            kind="uneven-average",
            severity="warning",
            summary="what is reported is the mean of the ranks' means, though they are of "
            f"different numbers of samples: {counts}",
            ranks=tuple(self._ranks),
            step=report["step"],
            **line_of(at),
            evidence=(
                f"{plain:g} was reported at {report['file']}:{report['line']}; the mean over all "
                f"samples was {weighted:g}",
            ),
            cure="all-reduce the sum and the number of samples, and divide one by the other",
        )


def _losses(rank: Rank, steps: Sequence[int]) -> list[float]:
    return list(itertools.chain.from_iterable(rank.losses.get(step, ()) for step in steps))


def _is(number: float, digits: int, value: float) -> bool:
    """Whether the value, written with so many decimals, is that number."""
    unit: float = 10.0**-digits
    return abs(number - value) <= 0.51 * unit + FLOAT32 * abs(value)


def _product(value: float, count: int) -> float:
    return value * count
