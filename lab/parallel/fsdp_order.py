"""In which order units are gathered: the same on every rank, whatever each rank's forward does.

Collectives match by the order of the calls. So in the first forward the ranks agree on each gather
(`Agreement`) and remember them (`Order`); from then on every forward and every backward gathers the
same units in the same order (`Queue`), also those that this rank happens not to use this time.
"""

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist

from lab.parallel.fsdp_unit import Unit


@dataclass(frozen=True)
class Order:
    """What the first forward found out; equal on all ranks."""

    used: Sequence[Unit]
    """Each once, by its first use."""
    never_used: Sequence[Unit]
    repeated: frozenset[Unit]
    """Those that were needed again after they had been freed. From then on they are kept until the
    end of forward."""

    @property
    def forward(self) -> list[Unit]:
        """The gathers of a forward."""
        return [*self.used, *self.never_used]

    @property
    def backward(self) -> list[Unit]:
        """The gathers of a backward, less what is still there; and the reductions."""
        return [*reversed(self.used), *self.never_used]


class Queue:
    """The gathers of one forward or backward whose order is known."""

    def __init__(self, units: Iterable[Unit]) -> None:
        """All that are to come."""
        self._waiting = deque(units)
        self._ahead: Unit | None = None
        """Begun by `prefetch`, and not needed yet."""

    def need(self, unit: Unit) -> None:
        """Have a unit gathered, and all before it.

        Raises:
            RuntimeError: it was gathered in this pass, and freed.
        """
        while not unit.gathered:
            if not self._waiting:
                raise RuntimeError(
                    f"{unit.name} is used again after it was freed, which the first forward did "
                    "not do, so the other ranks would not take part: wrap the module that calls it "
                    "instead, or give it ShardingStrategy.SHARD_GRAD_OP; in backward: checkpoint "
                    "with use_reentrant=False"
                )
            self._start_next()
            self._ahead = None
        if unit is self._ahead:
            self._ahead = None
        unit.finish_gather()

    def prefetch(self) -> None:
        """Begin with the next unit while others compute. One at a time, for the memory's sake."""
        while self._waiting and self._waiting[0].gathered:
            self._waiting.popleft()
        if self._waiting and self._ahead is None:
            self._ahead = self._waiting[0]
            self._start_next()

    def finish(self) -> None:
        """Take part in what other ranks may need, and this one did not."""
        while self._waiting:
            unit = self._waiting[0]
            if not unit.gathered:
                self._start_next()
                unit.free()
            else:
                self._waiting.popleft()

    def _start_next(self) -> None:
        unit = self._waiting.popleft()
        if not unit.gathered:
            unit.start_gather()


class Agreement:
    """The gathers of a first forward: before each, the ranks tell each other what they need."""

    NOTHING = -1

    def __init__(self, units: Sequence[Unit], group: dist.ProcessGroup | None) -> None:
        """All units, in order of registration."""
        self._units = units
        self._group = group
        self._gathered: list[Unit] = []

    def need(self, unit: Unit) -> None:
        """Have a unit gathered, and before it what other ranks need and is registered earlier."""
        while not unit.gathered:
            self._gather_one(self._units.index(unit))
        unit.finish_gather()

    def prefetch(self) -> None:
        """Not yet: what will come next is not known."""

    def finish(self) -> None:
        """Take part until no rank needs any more."""
        while self._gather_one(self.NOTHING):
            pass

    def order(self) -> Order:
        """For the forwards to come."""
        used = list(dict.fromkeys(self._gathered))
        return Order(
            used=used,
            never_used=[unit for unit in self._units if unit not in used],
            repeated=frozenset(unit for unit in used if self._gathered.count(unit) > 1),
        )

    def _gather_one(self, wanted: int) -> bool:
        """One round: False where no rank wants any."""
        size = dist.get_world_size(self._group)
        device = self._units[0].device
        mine = torch.tensor([wanted], device=device)
        everybodys = [torch.empty_like(mine) for _ in range(size)]
        dist.all_gather(everybodys, mine, group=self._group)
        numbers = [number for number in map(int, everybodys) if number != self.NOTHING]
        if not numbers:
            return False
        unit = self._units[min(numbers)]
        unit.start_gather()
        unit.finish_gather()
        self._gathered.append(unit)
        return True


class Reductions:
    """The reductions of one backward: in one order, one at a time under way."""

    def __init__(self, units: Iterable[Unit]) -> None:
        """All that are to come."""
        self._waiting = deque(units)
        self._ready: set[Unit] = set()
        self._under_way: Unit | None = None

    def is_begun(self, unit: Unit) -> bool:
        """Whether a gradient would come too late."""
        return unit not in self._waiting

    def ready(self, unit: Unit) -> None:
        """All gradients are there: begin, when it is this unit's turn."""
        self._ready.add(unit)
        while self._waiting and self._waiting[0] in self._ready:
            self._start_next()

    def finish(self) -> None:
        """Begin with the others, whether they have gradients or not, and wait for all."""
        while self._waiting:
            self._start_next()
        self._finish_one()

    def _start_next(self) -> None:
        self._finish_one()  # more under way would need more memory, and the wire is one
        self._under_way = self._waiting.popleft()
        self._under_way.start_reduce()

    def _finish_one(self) -> None:
        if self._under_way is not None:
            self._under_way.finish_reduce()
            self._under_way = None
