"""How many collectives each group has begun on this rank: the same on all ranks at one moment."""

import inspect
from collections.abc import Callable
from typing import Any

import torch.distributed as dist


class Counts:
    """Takes the numbers of the groups themselves, which count wrappers' collectives in C++ as well.

    What gloo counts among them and is none has to be told.
    """

    def __init__(self) -> None:
        self._apart: dict[str, int] = {}
        """By group: how many operations it has counted that are no collectives."""
        self._worlds = 0
        """How many have been taken apart."""

    def begun(self, group: dist.ProcessGroup) -> int:
        """How many collectives of that group have begun, as the flight recorder numbers them."""
        number: int = group._get_sequence_number_for_group()  # type: ignore[attr-defined]  # no stub
        return number - self._apart.get(group.group_name, 0)

    def moment(self, name: str | None) -> tuple[int, int, int]:
        """What is equal on ranks that are at one place of a script's collectives, and grows.

        `name`: of a group that counts, next to the default one.
        """
        world = own = 0
        if dist.is_available() and dist.is_initialized():
            groups = list(dist.distributed_c10d._world.pg_map)
            try:
                for group in groups:
                    if group is dist.group.WORLD:
                        world = self.begun(group)
                    elif group.group_name == name:
                        own = self.begun(group)
            except RuntimeError:  # a backend that does not count: steps alone tell
                world = own = 0
        return self._worlds, world, own

    def count_apart(self, operation: Callable[..., Any]) -> Callable[..., None]:
        """What to call after each point-to-point operation of that kind."""
        place = list(inspect.signature(operation).parameters).index("group")

        def count(*args: Any, **kwargs: Any) -> None:
            self._set_apart(kwargs.get("group", args[place] if place < len(args) else None), 1)

        return count

    def monitored(self, group: Any = None, *_: Any, **__: Any) -> None:
        """A monitored_barrier has ended: its rank 0 has sent to each of the others, and received.

        Two operations are common to all ranks.
        """
        if dist.get_rank(group) == 0:
            self._set_apart(group, 2 * (dist.get_world_size(group) - 2))

    def leave(self, group: Any) -> None:
        """A group is taken apart; None: all of them."""
        if group in (None, dist.group.WORLD):
            self._apart.clear()
            self._worlds += 1
        else:
            self._apart.pop(getattr(group, "group_name", ""), None)

    def _set_apart(self, group: Any, count: int) -> None:
        group = group or dist.group.WORLD
        if isinstance(group, dist.ProcessGroup) and dist.get_backend(group) == "gloo":
            name = group.group_name
            self._apart[name] = self._apart.get(name, 0) + count


def ranks_of(group: dist.ProcessGroup | None) -> tuple[int, ...] | None:
    """The group's, global, in their order; None where it has been taken apart. None: of all."""
    try:
        return tuple(sorted(dist.get_process_group_ranks(group)))
    except (KeyError, ValueError):
        return None
