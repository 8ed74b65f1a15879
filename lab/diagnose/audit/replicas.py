"""Whether the ranks train one model: equal weights at the start, equal gradients, equal updates."""

from lab.diagnose.audit.divergence import Divergence
from lab.diagnose.audit.layouts import Layouts, Record
from lab.diagnose.finding import Finding

KEPT = 64
"""Steps that wait for ranks which have not come to them."""


class Replicas:
    """Compares parameters and gradients of the ranks at the same steps."""

    checks = frozenset({"layout", "replica"})

    def __init__(self, world_size: int) -> None:
        self._world_size = world_size
        self._layouts = Layouts()
        self._steps: dict[tuple[int, int], dict[int, Record]] = {}
        self._followed: dict[tuple[int, tuple[int, ...]], Divergence] = {}

    def feed(self, rank: int, record: Record) -> list[Finding]:
        """See `Judge`."""
        if record["check"] == "layout":
            self._layouts.feed(rank, record)
            return []
        key = record["optimizer"], record["count"]
        ranks = self._steps.setdefault(key, {})
        ranks[rank] = record
        if len(ranks) == self._world_size:
            return self._compare(*key)
        if len(self._steps) > KEPT:
            return self._compare(*min(self._steps, key=lambda key: key[1]))
        return []

    def close(self) -> list[Finding]:
        """See `Judge`."""
        found = []
        for key in sorted(self._steps):
            found += self._compare(*key)
        for divergence in self._followed.values():
            found += divergence.close()
        return found

    def _compare(self, optimizer: int, count: int) -> list[Finding]:
        """Compare what has come for one step, among ranks that train the same."""
        records = self._steps.pop((optimizer, count))
        found = []
        for ranks in self._layouts.replicas(optimizer, list(records)):
            key = optimizer, ranks
            if key not in self._followed:
                layout = self._layouts.of(optimizer, ranks[0])
                assert layout is not None
                made = {rank: self._layouts.made.get((optimizer, rank)) for rank in ranks}
                self._followed[key] = Divergence(layout, made)
            found += self._followed[key].compare(count, {rank: records[rank] for rank in ranks})
        return found
