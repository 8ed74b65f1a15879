"""Parameters that are not finite any more, and on which rank that began."""

import math
from typing import Any

from lab.diagnose.audit.layouts import Layouts, listed, unpacked
from lab.diagnose.audit.records import Record, line_of
from lab.diagnose.finding import Finding, Innocent
from lab.diagnose.words import ranks_in_words

KEPT = 64
"""Steps that wait for ranks which have not come to them."""


class NotFinite:
    """Looks for the rank whose loss was the first that was no number."""

    checks = frozenset({"layout", "replica"})

    def __init__(self, world_size: int) -> None:
        self._world_size = world_size
        self._layouts = Layouts()
        self._fine: set[tuple[int, int]] = set()  # optimizer, rank: finite at some step
        self._bad: dict[int, dict[int, dict[int, Record]]] = {}  # optimizer -> step -> rank
        self._losses: dict[int, dict[str, Any]] = {}
        """Each rank's first bad loss."""
        self._said = False

    def feed(self, rank: int, record: Record) -> list[Finding]:
        """See `Judge`."""
        if record["check"] == "layout":
            self._layouts.feed(rank, record)
            return []
        if record["bad_loss"] is not None:
            self._losses[rank] = record["bad_loss"]
        else:
            self._losses.pop(rank, None)  # it did no harm
        optimizer, count = record["optimizer"], record["count"]
        steps = self._bad.setdefault(optimizer, {})
        ranks = steps.setdefault(count, {})
        ranks[rank] = record
        if len(ranks) < self._world_size:
            if len(steps) > KEPT:
                del steps[min(steps)]
            return []
        del steps[count]
        return self._judge(optimizer, ranks)

    def close(self) -> list[Finding]:
        """See `Judge`."""
        return [
            finding
            for optimizer, steps in self._bad.items()
            for count in sorted(steps)
            for finding in self._judge(optimizer, steps[count])
        ]

    def _judge(self, optimizer: int, ranks: dict[int, Record]) -> list[Finding]:
        bad = {rank: _not_finite(record) for rank, record in ranks.items()}
        affected = tuple(sorted(rank for rank, places in bad.items() if places))
        if not affected:
            self._fine |= {(optimizer, rank) for rank in ranks}
        if not affected or self._said or not any((optimizer, r) in self._fine for r in affected):
            return []  # what was so at the start is so on purpose
        self._said = True
        began = self._losses
        first = min((loss["backward"] for loss in began.values()), default=None)
        guilty = tuple(sorted(rank for rank, loss in began.items() if loss["backward"] == first))
        layout = self._layouts.of(optimizer, affected[0])
        names = [] if layout is None else [layout.names[place] for place in bad[affected[0]]]
        where = f"{ranks_in_words(affected)} have NaN or infinity in {listed(names or ['weights'])}"
        if first is None:
            record = ranks[affected[0]]
            return [
                Finding(
                    "nan",
                    "error",
                    f"{where}, though every loss was finite: it came with a gradient",
                    ranks=affected,
                    step=record["count"] - 1,
                    **line_of(record),
                    evidence=("the weights were finite before",),
                    cure="torch.autograd.set_detect_anomaly(True) names the operation",
                )
            ]
        site = began[guilty[0]]
        others = tuple(sorted(set(ranks) - set(guilty)))
        return [
            Finding(
                "nan",
                "error",
                f"the loss of {ranks_in_words(guilty)} was NaN or infinite at step {site['at']}"
                + (", before that of any other rank" if others else ""),
                ranks=guilty,
                step=site["at"],
                **line_of(site),
                innocent=(Innocent(others, "had a finite loss at that step"),) if others else (),
                evidence=(f"{where}, since the step took the gradients",),
                cure="look at the samples of that step on that rank, and at logarithms, roots and "
                "divisions in the loss",
            )
        ]


def _not_finite(record: Record) -> list[int]:
    norms = unpacked("f", record["parameter_norms"])
    return [place for place, norm in enumerate(norms) if math.isnan(norm)]
