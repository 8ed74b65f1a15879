"""Whether the ranks train on different samples, by what their models were given."""

import itertools
from collections import Counter

from lab.diagnose.audit.columns import Column, Columns
from lab.diagnose.audit.layouts import unpacked
from lab.diagnose.audit.loaders import SHARES_BY_RANK
from lab.diagnose.audit.records import Record, line_of
from lab.diagnose.audit.together import Together
from lab.diagnose.finding import Finding
from lab.diagnose.words import ranks_in_words

ENOUGH = 3
"""So many batches that are the same are no chance; fewer, where a run has no more."""
OVERLAP = 0.5
"""The share of a rank's samples that another one has had, while hardly any came twice."""
SOME = 0.3
"""The share that any of the others has had, while fewer came twice than a new epoch explains."""
CERTAIN = 20
TWICE = 0.1
"""The share that came before on the same rank. More: an epoch is over, or rows are alike."""
FEW = 16
"""Samples from which on a share says something."""


class Batches:
    """Compares the samples of the ranks: of one microbatch, and of all since an epoch began."""

    checks = frozenset({"batches"})

    def __init__(self, world_size: int) -> None:
        self._together = Together(world_size)
        self._columns: Columns[tuple[int, int]] = Columns(world_size)
        self._same: Counter[tuple[int, ...]] = Counter()
        self._before: dict[tuple[int, ...], tuple[int, ...]] = {}
        """By ranks: the last batch that they shared."""
        self._seen = 0
        self._first: dict[tuple[int, ...], Record] = {}
        self._early: dict[tuple[int, ...], Record] = {}
        """By ranks: the first batch they shared before anything had been exchanged."""
        self._shares_of: dict[tuple[int, ...], set[tuple[int, int] | None]] = {}
        """By ranks: how many shares their samplers deal out, and theirs; None: there is none."""
        self._samples: dict[int, set[int]] = {}
        self._drawn: Counter[int] = Counter()
        self._newest: Column = {}
        self._enough = FEW
        self._overlap = False

    def feed(self, rank: int, record: Record) -> list[Finding]:
        """See `Judge`."""
        self._together.feed(rank, record)
        place = record["step"], record["microbatch"]
        rows = unpacked("I", record["rows"])
        column = self._columns.add(place, rank, {**record, "rows": rows})
        if column is None:
            return []
        found = self._judge_same(column)
        if len({one["weights"] for one in column.values()}) == 1 and not self._together.apart:
            self._take(column)
        return found or self._judge_overlap()

    def close(self) -> list[Finding]:
        """What a short run has shown."""
        self._enough = FEW
        always = [ranks for ranks, count in self._same.items() if self._seen == count > 1]
        return [*map(self._say_same, always), *self._judge_overlap()]

    def _judge_same(self, column: Column) -> list[Finding]:
        groups: dict[tuple[int, ...], list[int]] = {}
        for rank in sorted(column):
            rows = column[rank]["rows"]
            if len(set(rows)) > 1 or len(rows) == 1:  # else made up: ones, zeros
                # Ranks with weights of their own are no replicas: they may well share samples.
                groups.setdefault((*rows, column[rank]["weights"]), []).append(rank)
        if not all(record["exchanged"] for record in column.values()):
            # Where nothing is exchanged, each may compute the same for itself. Or will be, but for
            # the first batch: FSDP sends nothing before that.
            if not self._seen:
                for those in groups.values():
                    self._early.setdefault(tuple(those), column[those[0]])
            return []
        self._seen += 1
        found = []
        for what, ranks in ((what, tuple(ranks)) for what, ranks in groups.items()):
            if len(ranks) == 1 or what[:-1] == self._before.get(ranks):
                continue  # one batch for ever is for measuring
            self._before[ranks] = what[:-1]
            self._same[ranks] += 1
            self._first.setdefault(ranks, self._early.get(ranks, column[ranks[0]]))
            shares = (column[rank]["share"] for rank in ranks)
            self._shares_of.setdefault(ranks, set()).update(
                None if share is None else tuple(share) for share in shares
            )
            if self._same[ranks] == ENOUGH:
                found.append(self._say_same(ranks))
        return found

    def _say_same(self, ranks: tuple[int, ...]) -> Finding:
        first = self._first[ranks]
        evidence = [
            f"in {self._same[ranks]} of {self._seen} batches that were looked at, the inputs "
            f"of the model were the same, bit by bit, from step {first['step']} on"
        ]
        cure = (
            "give each rank its own samples: a DistributedSampler, or a seed for the data that "
            "depends on the rank"
        )
        share, *others = self._shares_of[ranks]
        if share is not None and not others:
            evidence.append(f"each of them takes share {share[1]} of {share[0]} from its sampler")
            cure = SHARES_BY_RANK
        return Finding(
            kind="same-batch",
            severity="error",
            summary=f"{ranks_in_words(ranks)} train on the same batches: what one of them "
            "computes, the others compute again",
            ranks=ranks,
            step=first["step"],
            **line_of(first),
            evidence=tuple(evidence),
            cure=cure,
        )

    def _take(self, column: Column) -> None:
        """Add what the ranks had to what they have had since an epoch began."""
        for rank, record in column.items():
            self._drawn[rank] += len(record["rows"])
            self._samples.setdefault(rank, set()).update(record["rows"])
        self._newest = column
        if any(self._drawn[rank] * (1 - TWICE) > len(own) for rank, own in self._samples.items()):
            self._samples.clear()
            self._drawn.clear()
            self._enough = FEW

    def _judge_overlap(self) -> list[Finding]:
        sizes = {rank: len(samples) for rank, samples in self._samples.items()}
        if not sizes or self._overlap or min(sizes.values()) < self._enough:
            return []
        self._enough = min(sizes.values()) * 5 // 4  # to look each time would take too long
        guilty: set[int] = set()
        for a, b in itertools.combinations(sorted(sizes), 2):
            both = len(self._samples[a] & self._samples[b])
            if both > OVERLAP * min(sizes[a], sizes[b]) and not self._are_same(a, b):
                guilty |= {a, b}
        if not guilty and any(map(self._shares, sizes)):
            guilty = {n for n in sizes if len(self._elsewhere(n)) > TWICE * sizes[n]}
        if not guilty:
            return []
        self._overlap = True
        one = self._newest[min(guilty)]
        shared = {rank: len(self._elsewhere(rank)) for rank in sorted(guilty)}
        told = ", ".join(f"{shared[rank]} of {sizes[rank]} on rank {rank}" for rank in shared)
        return [
            Finding(
                kind="overlapping-samples",
                severity="error",
                summary=f"{ranks_in_words(guilty)} train on the same samples within an epoch, in "
                "another order",
                ranks=tuple(sorted(guilty)),
                step=one["step"],
                **line_of(one),
                evidence=(
                    f"by step {one['step']}, samples had come up on another rank as well: {told}; "
                    "few came twice on the same",
                ),
                cure="deal the samples out: a DistributedSampler, or the same order on every rank "
                "of which each takes its own part",
            )
        ]

    def _are_same(self, a: int, b: int) -> bool:
        """Whether two have the same batches, which is said of them."""
        return any({a, b} <= set(ranks) for ranks in self._same)

    def _elsewhere(self, rank: int) -> set[int]:
        """Those of its samples that others have had, but for those that have its batches."""
        others = (
            samples
            for other, samples in self._samples.items()
            if other != rank and not self._are_same(rank, other)
        )
        return self._samples[rank] & set().union(*others)

    def _shares(self, rank: int) -> bool:
        """Whether others have had many of its samples, which were not dealt out anew.

        In an epoch that is dealt out anew a sample comes back to its own rank as often as to any
        other, and where samples are drawn with replacement half as often. So many would have come
        twice on this one; that a tenth of them has is no chance where they are `CERTAIN` ones.
        """
        size, shared = len(self._samples[rank]), len(self._elsewhere(rank))
        twice = self._drawn[rank] - size
        expected = shared / 2 / max(1, len(self._samples) - 1)
        return shared > SOME * size and expected >= CERTAIN and 10 * twice <= expected
