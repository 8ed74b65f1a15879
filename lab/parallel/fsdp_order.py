"""In which order units are gathered and reduced: the same on every rank, whatever each rank does.

Collectives match by the order of the calls. So in the first forward the ranks agree on each gather
(`Agreement`) and remember them (`Order`). From then on every forward and every backward is a
`Program`: a fixed sequence of collectives. A rank that needs the third begins the first two before
it, also for units that it happens not to use this time.
"""

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, auto

import torch
import torch.distributed as dist

from lab.parallel.fsdp_unit import Unit, device_of


class Verb(Enum):
    """A collective of a unit."""

    GATHER = auto()
    REDUCE = auto()


Step = tuple[Verb, Unit]


@dataclass(frozen=True)
class Order:
    """What the first forward found out; equal on all ranks."""

    gathers: Sequence[Unit]
    """In the order of that forward. The outermost is the first; a unit that was freed and used
    again is there more than once."""
    never_used: Sequence[Unit]
    parents: Mapping[Unit, Unit]
    """The unit around each but the outermost."""

    @property
    def repeated(self) -> frozenset[Unit]:
        """Units that are kept until the end of forward from now on."""
        return frozenset(unit for unit in self.gathers if self.gathers.count(unit) > 1)

    def forward(self) -> list[Step]:
        """Gather each once, by its first use."""
        units = dict.fromkeys([*self.gathers, *self.never_used])
        return [(Verb.GATHER, unit) for unit in units if unit.flats]

    def backward(self, *, reduce: bool, prefetch: bool) -> list[Step]:
        """Gather what is not there, by its last use in forward; reduce by its first.

        Args:
            reduce: False: only gather.
            prefetch: each gather comes before what the unit before it leads to.
        """
        outermost, *others = self.gathers
        steps = list(self._backwards([outermost, *self.never_used, *others]))
        places: dict[Step, int] = {}
        for place, step in enumerate(steps):
            verb, unit = step
            if verb is Verb.GATHER and not unit.gathered:
                places.setdefault(step, place)
            elif verb is Verb.REDUCE and unit.trained and reduce:
                places[step] = place
        ordered = sorted(places, key=places.__getitem__)
        return _one_gather_ahead(ordered) if prefetch else ordered

    def _backwards(self, units: Sequence[Unit]) -> Iterator[Step]:
        """Enter a unit before those inside it, the last ones first, and leave it after them."""
        groups: list[list[Unit]] = []
        for unit in units:
            if groups and is_around(self.parents, groups[-1][0], unit):
                groups[-1].append(unit)
            else:
                groups.append([unit])
        for outer, *inside in reversed(groups):
            yield Verb.GATHER, outer
            yield from self._backwards(inside)
            yield Verb.REDUCE, outer


def is_around(parents: Mapping[Unit, Unit], outer: Unit, unit: Unit) -> bool:
    """Whether a unit is another one or inside it."""
    inside: Unit | None = unit
    while inside is not None and inside is not outer:
        inside = parents.get(inside)
    return inside is outer


def _one_gather_ahead(steps: Sequence[Step]) -> list[Step]:
    """The same, with each gather moved to where the one before it was."""
    gathers = deque(step for step in steps if step[0] is Verb.GATHER)
    ahead = [gathers.popleft()] if gathers else []
    for step in steps:
        if step[0] is Verb.REDUCE:
            ahead.append(step)
        elif gathers:
            ahead.append(gathers.popleft())
    return ahead


class Program:
    """The collectives of one forward or backward whose order is known."""

    def __init__(self, steps: Iterable[Step]) -> None:
        """All that are to come."""
        self._steps = deque(steps)
        self._ready: set[Unit] = set()
        self._ahead: Unit | None = None
        """Gathered by `prefetch`, and not needed yet."""
        self._reducing: Unit | None = None

    def need(self, unit: Unit) -> None:
        """Have a unit gathered, and all before it done.

        Raises:
            RuntimeError: it was gathered in this pass, and freed.
        """
        while not unit.gathered:
            if not self._steps:
                raise RuntimeError(
                    f"{unit.name} is used again after it was freed, which the first forward did "
                    "not do, so the other ranks would not take part: wrap the module that calls it "
                    "instead, or give it ShardingStrategy.SHARD_GRAD_OP"
                )
            self._start_next()
            self._ahead = None
        if unit is self._ahead:
            self._ahead = None
        unit.finish_gather()

    def prefetch(self) -> None:
        """Begin with the next gather. One at a time, for the memory's sake."""
        following = next((unit for verb, unit in self._steps if verb is Verb.GATHER), None)
        if following is not None and self._ahead is None:
            while not following.gathered:
                self._start_next()
            self._ahead = following

    def go_on(self, share: float) -> None:
        """Backward has computed a share of the unit after the one whose gradients are sent."""
        if self._reducing is not None:
            self._reducing.go_on(share)

    def ready(self, unit: Unit) -> None:
        """All its gradients are there: reduce them when it is their turn."""
        self._ready.add(unit)
        while self._steps and self._steps[0][0] is Verb.REDUCE and self._steps[0][1] in self._ready:
            self._start_next()

    def finish(self) -> None:
        """Do what is left: what other ranks may need, and this one did not."""
        while self._steps:
            verb, unit = self._steps[0]
            self._start_next()
            if verb is Verb.GATHER:
                unit.free()
        self._finish_reduction()

    def _start_next(self) -> None:
        verb, unit = self._steps.popleft()
        if verb is Verb.GATHER:
            unit.start_gather()
        else:
            self._finish_reduction()  # more under way would need more memory; the wire is one
            unit.start_reduce()
            self._reducing = unit

    def _finish_reduction(self) -> None:
        if self._reducing is not None:
            self._reducing.finish_reduce()
            self._reducing = None


class Agreement:
    """The gathers of a first forward: before each, the ranks tell each other what they need."""

    NOTHING = -1

    def __init__(
        self,
        units: Sequence[Unit],
        parents: Mapping[Unit, Unit],
        group: dist.ProcessGroup | None,
    ) -> None:
        """All units, in order of registration, and which is around which."""
        self._parents = parents
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
        outermost = self._units[0]
        others = [unit for unit in self._gathered if unit is not outermost]
        return Order(
            gathers=[outermost, *others],
            never_used=[unit for unit in self._units[1:] if unit not in others],
            parents=self._parents,
        )

    def _gather_one(self, wanted: int) -> bool:
        """One round: False where no rank wants any."""
        size = dist.get_world_size(self._group)
        mine = torch.tensor([wanted], device=device_of(self._units))
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
