"""Whether the ranks train one model, or each one of its own: an ensemble, a search."""

from collections.abc import Mapping
from typing import Any

KEPT = 64
"""Steps that wait for ranks which have not come to them."""


class Together:
    """Takes the records of `batches`: what the ranks' weights are, and whether they exchange."""

    def __init__(self, world_size: int) -> None:
        self._world_size = world_size
        self._steps: dict[int, dict[int, tuple[int, bool]]] = {}
        self._seen = self._alike = 0

    def feed(self, rank: int, record: Mapping[str, Any]) -> None:
        """Take the first microbatch of a step: before the others of it nothing is exchanged."""
        if record["microbatch"]:
            return
        ranks = self._steps.setdefault(record["step"], {})
        ranks[rank] = record["weights"], record["exchanged"]
        if len(ranks) == self._world_size:
            del self._steps[record["step"]]
            weights, exchanged = zip(*ranks.values(), strict=True)
            self._seen += 1
            self._alike += len(set(weights)) == 1 and any(exchanged)
        elif len(self._steps) > KEPT:
            del self._steps[min(self._steps)]

    @property
    def apart(self) -> bool:
        """Whether most steps show models of the ranks' own; not, where nothing was seen."""
        return self._alike * 2 < self._seen
