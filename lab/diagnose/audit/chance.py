"""Random numbers that are the same on ranks where they should differ, and the other way round."""

from collections import Counter
from collections.abc import Mapping
from typing import Any

from lab.diagnose.audit.columns import Columns
from lab.diagnose.audit.records import Record, line_of
from lab.diagnose.audit.together import Together
from lab.diagnose.finding import Finding
from lab.diagnose.words import ranks_in_words

ENOUGH = 3
"""So many steps at which the states are the same are no chance; fewer, where there are no more."""


class Noise:
    """Compares the random states from which the models drew in training."""

    checks = frozenset({"noise"})

    def __init__(self, world_size: int) -> None:
        self._steps: Columns[tuple[int, int]] = Columns(world_size)
        self._same: Counter[tuple[int, ...]] = Counter()
        self._first: dict[tuple[int, ...], Record] = {}

    def feed(self, rank: int, record: Record) -> list[Finding]:
        """See `Judge`."""
        place = record["step"], record["number"]
        step = self._steps.add(place, rank, record)
        if step is None:
            return []
        states: dict[object, list[int]] = {}
        for one in sorted(step):  # ranks with weights of their own are no replicas
            states.setdefault((step[one]["state"], step[one]["weights"]), []).append(one)
        found = []
        for ranks in (tuple(ranks) for ranks in states.values() if len(ranks) > 1):
            self._same[ranks] += 1
            self._first.setdefault(ranks, step[ranks[0]])
            if self._same[ranks] == ENOUGH:
                found.append(self._say(ranks))
        return found

    def close(self) -> list[Finding]:
        """What a short run has shown."""
        return [self._say(ranks) for ranks, count in self._same.items() if 1 < count < ENOUGH]

    def _say(self, ranks: tuple[int, ...]) -> Finding:
        first = self._first[ranks]
        return Finding(
            kind="same-random-state",
            severity="warning",
            summary=f"{ranks_in_words(ranks)} draw the same random numbers in the model: dropout "
            "leaves out the same on each of them",
            ranks=ranks,
            step=first["step"],
            **line_of(first),
            evidence=(
                f"{self._same[ranks]} times the model drew random numbers in training, from the "
                f"same state of the generator on {ranks_in_words(ranks)}",
            ),
            cure="once the model is built, seed each rank differently: torch.manual_seed(seed + "
            "rank)",
        )


class Splits:
    """Compares what `random_split` gave."""

    checks = frozenset({"splits", "batches"})

    def __init__(self, world_size: int) -> None:
        self._world_size = world_size
        self._together = Together(world_size)
        self._splits: dict[tuple[Any, ...], dict[int, Record]] = {}

    def feed(self, rank: int, record: Record) -> list[Finding]:
        """See `Judge`."""
        if record["check"] == "batches":
            self._together.feed(rank, record)
            return []
        key = record["number"], record["file"], record["line"], tuple(record["lengths"])
        self._splits.setdefault(key, {})[rank] = record
        return []

    def close(self) -> list[Finding]:
        """Whether the ranks train one model is known now: those with their own may split anyhow."""
        if self._together.apart:
            return []
        return [finding for split in self._splits.values() for finding in self._judge(split)]

    def _judge(self, split: Mapping[int, Record]) -> list[Finding]:
        digests = Counter(one["digest"] for one in split.values())
        if len(split) < self._world_size or len(digests) == 1:
            return []
        record = split[max(split)]
        usual, count = digests.most_common(1)[0]
        alone = count > len(split) / 2
        ranks = [r for r in sorted(split) if not alone or split[r]["digest"] != usual]
        whose = f"{ranks_in_words(ranks)} split" if alone else "the ranks split"
        return [
            Finding(
                kind="different-random-state",
                severity="error",
                summary=f"{whose} the dataset differently from one another: what is held out on "
                "one rank is trained on by another",
                ranks=tuple(ranks),
                step=record["step"],
                **line_of(record),
                evidence=(
                    f"random_split into {record['lengths']} gave {len(digests)} different splits "
                    f"on {len(split)} ranks",
                ),
                cure="split with the same generator on every rank: random_split(..., "
                "generator=torch.Generator().manual_seed(0))",
            )
        ]
