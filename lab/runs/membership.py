"""Which nodes and ranks take part in a job that goes on without the nodes it loses.

torchrun forms the worlds (`--min-nodes`): all ranks of a world start together, and all end before
the next one. Its agents tell of each rank that starts which world that is in.
"""

from collections.abc import Sequence
from typing import Any

from lab.node.protocol import Message


class Membership:
    """The present world of an elastic job, as far as its ranks have started."""

    def __init__(self, nodes: Sequence[str], fewest: int) -> None:
        """`nodes` by node rank; `fewest` will do."""
        self._host = nodes[0]
        self._present = set(nodes)
        self._fewest = fewest
        self._world: dict[str, Any] | None = None
        self._places: dict[int, str] = {}  # rank -> node, of the ranks that have started
        self._ended_well: set[int] = set()
        self.restarts = 0
        """How many worlds came after the first."""
        self.lost: tuple[str, ...] = ()
        """Nodes that the job went on without."""
        self.gave_up = False
        """Whether torchrun, or the loss of too many nodes, has ended the job."""

    @property
    def ranks(self) -> int:
        """The world's size; 0 before the first."""
        return 0 if self._world is None else int(self._world["ranks"])

    @property
    def size(self) -> str:
        """Of the world, in words."""
        assert self._world is not None
        return _count(self._world["ranks"], "rank") + " on " + _count(self._world["nodes"], "node")

    def on_started(self, message: Message) -> bool:
        """A rank has started; whether it is the first of another world than those before had."""
        world: dict[str, Any] = message["world"]
        before, self._world = self._world, world
        is_next = before is not None and str(before["master"]) != str(world["master"])
        if is_next:
            self.restarts += 1
            self._places.clear()
            self._ended_well.clear()
        self._places[message["rank"]] = message["node"]
        return is_next

    def knows(self, message: Message) -> bool:
        """Whether what a rank's agent tells is of the present world; else it comes late."""
        return bool(self._places.get(message["rank"]) == message["node"])

    def on_exit(self, message: Message) -> None:
        """A rank of the present world has ended."""
        if message["code"] == 0:
            self._ended_well.add(message["rank"])

    def lose(self, node: str) -> bool:
        """A node has gone; whether the others can go on without it."""
        self._present.discard(node)
        if node == self._host or len(self._present) < self._fewest:
            return False
        self.lost += (node,)
        return True

    def why_not_without(self, node: str) -> str:
        """What keeps the others from going on without it."""
        if node == self._host:
            return "the store by which torchrun's nodes find each other was there"
        return f"--min-nodes {self._fewest} are not left"

    def ranks_on(self, node: str) -> set[int]:
        """The ranks of the present world that started there."""
        return {rank for rank, place in self._places.items() if place == node}

    @property
    def all_ended_well(self) -> bool:
        """Whether no rank of the present world is left but on lost nodes."""
        gone = {rank for rank, place in self._places.items() if place in self.lost}
        return 0 < self.ranks == len(self._ended_well | gone)


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'s' * (number != 1)}"
