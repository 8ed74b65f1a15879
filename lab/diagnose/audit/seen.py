"""What the ranks had before one step of their optimizers, and what of it differs."""

import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from lab.diagnose.audit.layouts import Layout, minority, unpacked
from lab.diagnose.audit.options import Difference, differences
from lab.diagnose.audit.records import Record

ROUNDING = 1e-6
"""Relative: norms that differ by less may do so by rounding, on processors of different kinds."""


@dataclass(frozen=True)
class Seen:
    """The records of one step. Parameters are named by their places in the optimizer."""

    layout: Layout
    records: Mapping[int, Record]
    """By rank."""

    @property
    def ranks(self) -> tuple[int, ...]:
        """All that were compared."""
        return tuple(sorted(self.records))

    def differing(self, what: str) -> set[int]:
        """Those of which `what` (`parameters`, `gradients`) is not the same on all ranks."""
        texts = {record[what] for record in self.records.values()}
        if len(texts) == 1:
            return set()
        columns = zip(*(unpacked("I", text) for text in texts), strict=True)
        differing = {place for place, column in enumerate(columns) if len(set(column)) > 1}
        return differing & set(self.layout.whole)

    def together(self, gradients: set[int]) -> set[int]:
        """Those of which all ranks have the same gradient, and not only none or zero.

        `gradients`: those of which they have not.
        """
        norms = unpacked("f", next(iter(self.records.values()))["gradient_norms"])
        return {place for place, norm in enumerate(norms) if norm > 0} - gradients

    def has_nan(self) -> bool:
        """Whether any weight is NaN or infinite."""
        norms = [unpacked("f", record["parameter_norms"]) for record in self.records.values()]
        return any(math.isnan(norm) for each in norms for norm in each)

    def norms(self, place: int) -> dict[int, float]:
        """The norms of one parameter, by rank."""
        return {r: unpacked("f", x["parameter_norms"])[place] for r, x in self.records.items()}

    def gradient_norms(self) -> dict[int, float]:
        """The norm of all gradients together, by rank."""
        norms = {r: unpacked("f", x["gradient_norms"]) for r, x in self.records.items()}
        return {
            rank: math.sqrt(sum(norm**2 for norm in each if not math.isnan(norm)))
            for rank, each in norms.items()
        }

    def sums(self, place: int) -> dict[int, float]:
        """The sums of one parameter's elements, by rank."""
        return {r: unpacked("f", x["parameter_sums"])[place] for r, x in self.records.items()}

    def beyond_rounding(self, places: Collection[int]) -> set[int]:
        """Those of them whose norms differ by more, or the sums of their elements."""
        each = [
            (unpacked("f", record["parameter_norms"]), unpacked("f", record["parameter_sums"]))
            for record in self.records.values()
        ]
        beyond = set()
        for place in places:
            norms = [norm[place] for norm, _ in each]
            sums = [total[place] for _, total in each]
            largest = ROUNDING * max(norms)
            elements = math.prod(self.layout.shapes[place])
            differ = max(norms) - min(norms) > largest
            if differ or max(sums) - min(sums) > largest * math.sqrt(elements):
                beyond.add(place)
        return beyond

    def guilty(self, places: Collection[int], what: str) -> tuple[int, ...]:
        """The ranks that have not what most have; see `minority`."""
        values = {rank: unpacked("I", record[what]) for rank, record in self.records.items()}
        return minority({rank: tuple(v[p] for p in places) for rank, v in values.items()})

    def options(self, places: Iterable[int]) -> list[Difference]:
        """What differs of the optimizers' options for them."""
        return differences({rank: one["options"] for rank, one in self.records.items()}, places)

    def may_follow_a_collective(self, before: "Seen") -> bool:
        """Whether ranks have called one since then; True where nobody counts them."""
        began = [
            {rank: one["moment"][:-1] for rank, one in seen.records.items()}
            for seen in (before, self)
        ]
        return began[0] != began[1] or not any(map(any, began[1].values()))

    def copied_from(self, before: "Seen") -> int | None:
        """The rank whose broadcasts are all that was called since then; None: not so."""
        rank = self.ranks[0]
        if rank not in before.records:
            return None
        now, then = self.records[rank], before.records[rank]
        sent: Mapping[str, int] = now["exchanged"]
        sources = [what for what in sent if what.startswith("from ")]
        called = sum(now["moment"][:-1]) - sum(then["moment"][:-1])
        if len(sources) != 1 or called != sent[sources[0]] + sent.get("barrier", 0):
            return None
        source = sources[0].removeprefix("from ")
        return int(source) if source.isdigit() else None

    def changed(self, before: "Seen", places: Collection[int]) -> bool:
        """Whether any of these has other values than then."""
        rank = self.ranks[0]
        if rank not in before.records:
            return False
        now, then = (unpacked("I", x.records[rank]["parameters"]) for x in (self, before))
        return any(now[place] != then[place] for place in places)
