"""Whether the ranks train one model: equal weights at the start, equal gradients, equal updates."""

from lab.diagnose.audit.divergence import Divergence
from lab.diagnose.audit.layouts import Layouts
from lab.diagnose.audit.options import Options, after
from lab.diagnose.audit.order import Wrapped, judge_order
from lab.diagnose.audit.records import Record
from lab.diagnose.finding import Finding

Moment = tuple[int, ...]
"""How many collectives there have been before a step, and which of the steps since it is.

Not the steps' own numbers: those differ where ranks take other numbers of steps on purpose (`Join`,
local SGD), and are at one moment all the same."""
GATHERED = frozenset({"gather", "all_gather", "gather_object", "all_gather_object"})
"""What puts results side by side, where a mean would be of one model."""
KEPT = 64
"""Steps that wait for ranks which have not come to them."""


class Replicas:
    """Compares parameters and gradients of the ranks at the same steps."""

    checks = frozenset({"averaged", "collectives", "layout", "replica", "world", "wrapped"})

    def __init__(self, world_size: int) -> None:
        self._world_size = world_size
        self._layouts = Layouts()
        self._wrapped = Wrapped()
        self._steps: dict[tuple[int, Moment], dict[int, Record]] = {}
        self._latest: dict[tuple[int, int], Moment] = {}
        """The last step of each optimizer on each rank."""
        self._options: dict[tuple[int, int], Options] = {}
        """Of each optimizer on each rank, as they were told last."""
        self._disordered: set[int] = set()
        """Optimizers whose parameters the ranks have in other orders."""
        self._followed: dict[tuple[int, tuple[int, ...]], Divergence] = {}
        self._averaged: set[int] = set()
        """Optimizers whose weights were put together after a step."""
        self._worlds: dict[int, int] = {}
        """By rank: the size of the world that it has joined."""
        self._have_called = False
        """Whether any collective has been called in it."""
        self._called: set[str] = set()
        """Those that the script has called itself, but for barriers."""

    def feed(self, rank: int, record: Record) -> list[Finding]:
        """See `Judge`."""
        if record["check"] == "wrapped":
            return self._wrapped.feed(rank, record)
        if record["check"] == "collectives":
            self._have_called |= bool(record["seen"])
            calls = [op for _, _, source, op, *_ in record["new"] if source == "call"]
            self._called |= set(calls) - {"barrier"}
            return []
        if record["check"] == "averaged":
            self._averaged |= set(record["optimizers"])
            return []
        if record["check"] == "world":
            self._worlds[rank] = record["size"]
            return []
        if record["check"] == "layout":
            self._layouts.feed(rank, record)
            self._options.pop((record["optimizer"], rank), None)
            return []
        key = record["optimizer"], tuple(record["moment"])
        own = record["optimizer"], rank
        self._latest[own] = key[1]
        self._options[own] = after(self._options.get(own, {}), record["options"])
        ranks = self._steps.setdefault(key, {})
        ranks[rank] = {**record, "options": self._options[own]}
        if len(ranks) == self._world_size:
            return self._compare(*key)
        if len(self._steps) > KEPT:  # ranks look at other steps where they have less time
            del self._steps[min(self._steps, key=lambda key: key[1])]
        return []

    def close(self) -> list[Finding]:
        """See `Judge`."""
        found = []
        for optimizer, moment in sorted(self._steps):
            missing = set(range(self._world_size)) - self._steps[optimizer, moment].keys()
            if all(self._latest.get((optimizer, rank), ()) < moment for rank in missing):
                found += self._compare(optimizer, moment)
        joined = list(self._worlds.values()) == [self._world_size] * self._world_size
        for (optimizer, _), divergence in self._followed.items():
            if optimizer not in self._disordered | self._averaged:
                found += divergence.close(
                    joined_in_vain=joined and not self._have_called,
                    gathers_results=bool(self._called) and self._called <= GATHERED,
                )
        return found

    def _compare(self, optimizer: int, moment: Moment) -> list[Finding]:
        """Compare what has come for one step, among ranks that train the same."""
        records = self._steps.pop((optimizer, moment))
        count = min(record["count"] for record in records.values())
        if optimizer in self._disordered:
            return []
        layouts = {rank: self._layouts.of(optimizer, rank) for rank in records}
        known = {rank: layout for rank, layout in layouts.items() if layout is not None}
        if found := judge_order(count, known, records):
            self._disordered.add(optimizer)  # all else follows from it
            return found
        for ranks in self._layouts.replicas(optimizer):
            present = {rank: records[rank] for rank in ranks if rank in records}
            if len(present) < 2:
                continue
            key = optimizer, ranks
            if key not in self._followed:
                layout = self._layouts.of(optimizer, ranks[0])
                assert layout is not None
                made = {rank: self._layouts.made.get((optimizer, rank)) for rank in ranks}
                self._followed[key] = Divergence(layout, made)
            found += self._followed[key].compare(count, present)
        return found
