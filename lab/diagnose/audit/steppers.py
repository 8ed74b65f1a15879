"""Whether every rank that has wrapped a model steps an optimizer of it."""

from collections.abc import Collection

from lab.diagnose.audit.layouts import Layouts
from lab.diagnose.audit.records import Record, line_of
from lab.diagnose.finding import Finding
from lab.diagnose.words import ranks_in_words

ENOUGH = 3
"""Steps: by then DDP has had the others go through two, of which there is no word."""
SENDS = frozenset({"broadcast_object_list", "scatter", "scatter_object_list"})
"""What new weights may come by, and is not among `exchanged`."""


class Steppers:
    """Looks, at the end, for ranks that put gradients together, and never step.

    Such a rank has no record that could be compared with those of the others. It must have come to
    a good end: one that hangs, or has failed, may never have come to its first step.
    """

    checks = frozenset({"collectives", "ended", "layout", "replica", "wrapped"})

    def __init__(self, world_size: int) -> None:
        self._layouts = Layouts()
        self._wrapped: dict[int, set[str]] = {}
        """By rank: names of the parameters of the models that it has given to DDP."""
        self._stepped: dict[int, set[str]] = {}
        """By rank: names of those that it steps."""
        self._last: dict[tuple[int, int], Record] = {}
        """By optimizer and rank: the step that was seen last."""
        self._ended: set[int] = set()
        """Those that have come to a good end."""
        self._sends = False
        """Whether weights may come from other ranks."""

    def feed(self, rank: int, record: Record) -> list[Finding]:
        """See `Judge`."""
        if record["check"] == "wrapped":
            self._wrapped.setdefault(rank, set()).update(record["names"])
        elif record["check"] == "layout":
            self._layouts.feed(rank, record)
            self._stepped.setdefault(rank, set()).update(record["names"])
        elif record["check"] == "collectives":
            self._sends |= any(op in SENDS for _, _, source, op, *_ in record["new"])
        elif record["check"] == "ended":
            self._ended |= {rank} if record["code"] == 0 else set()
        else:
            self._last[record["optimizer"], rank] = record
            sent = record["exchanged"] if record["count"] > 1 else {}
            self._sends |= any(what.startswith(("from ", "point", "copies")) for what in sent)
        return []

    def close(self) -> list[Finding]:
        """See `Judge`."""
        found: dict[tuple[int, ...], Finding] = {}
        for (optimizer, rank), last in self._last.items():
            layout = self._layouts.of(optimizer, rank)
            if layout is None or layout.group is None or self._sends or last["count"] < ENOUGH:
                continue
            own = [r for r in layout.group if self._wrapped.get(r, set()) >= set(layout.names)]
            own = [r for r in own if r in self._ended]
            idle = tuple(r for r in own if not self._stepped.get(r, set()) & self._wrapped[r])
            if idle:
                others = [r for r in layout.group if r not in idle]
                found.setdefault(idle, self._say(idle, others, last))
        return list(found.values())

    @staticmethod
    def _say(idle: tuple[int, ...], others: Collection[int], last: Record) -> Finding:
        keep = "keeps its first weights" if len(idle) == 1 else "keep their first weights"
        return Finding(
            "parameters-differ",
            "error",
            f"only {ranks_in_words(others)} step{'s' * (len(others) == 1)} an optimizer of this "
            f"model: {ranks_in_words(idle)} {keep}",
            ranks=idle,
            step=1,
            **line_of(last),
            evidence=(
                f"all have wrapped it in DistributedDataParallel; after {last['count']} steps of "
                f"{ranks_in_words(others)} there was none of {ranks_in_words(idle)}, and nothing "
                "is sent after a step",
            ),
            cure="step the optimizer on every rank: the averaged gradients are there on each of "
            "them, and DistributedDataParallel sends no weights after its construction",
        )
