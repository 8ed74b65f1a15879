"""Which samples each step takes, on which rank: a function of the seed and the place in the data.

So a training can stop anywhere and go on, in the midst of an epoch and on another number of ranks:
with the same number of samples a step, each step has the same samples as it would have had.
torch's DistributedSampler deals an epoch out by rank instead, and knows nothing of where it was.
"""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, Sampler, default_collate, get_worker_info

from lab.parallel.graph import moved_to
from lab.training.seeding import derived, seed_all, seeded
from lab.training.world import World


class Samples(Protocol):
    """A data set: torch's that have a length, a list of samples."""

    def __len__(self) -> int: ...
    def __getitem__(self, index: int, /) -> Any: ...


class Position(NamedTuple):
    """Where in the data a training is: this many samples of this epoch are done, from 0."""

    epoch: int = 0
    sample: int = 0


class Microbatch(NamedTuple):
    """What one rank takes at once."""

    indices: list[int]
    seed: int
    """For augmentation."""


class Order:
    """Each epoch's samples in an order of its own, in steps of equally many.

    The last step of an epoch begins the epoch's order again where it lacks samples: it has as many
    as all others.
    """

    def __init__(self, samples: int, per_step: int, seed: int) -> None:
        self.samples = samples
        self.per_step = per_step
        self.seed = seed
        self.steps_per_epoch = -(-samples // per_step)
        self.left_out: tuple[Position, ...] = ()
        """Where steps begin whose samples are not to be used."""
        self._drawn = (-1, torch.empty(0))

    def begin(self, position: Position) -> Position:
        """Where the next step takes its samples: there, or behind what is left out."""
        while position in self.left_out:
            position = self._behind(position)
        return position

    def after(self, position: Position) -> Position:
        """Where one step leads. An epoch's end is always there to be seen."""
        end = self._behind(self.begin(position))
        return self.begin(end) if end.sample else end

    def _behind(self, position: Position) -> Position:
        done = position.sample + self.per_step
        epoch = position.epoch
        return Position(epoch, done) if done < self.samples else Position(epoch + 1, 0)

    def steps_until(self, position: Position, epochs: int) -> int:
        """Steps from a position on until so many epochs are done."""
        if position.epoch >= epochs:
            return 0
        rest = -(-(self.samples - position.sample) // self.per_step)
        rest += (epochs - position.epoch - 1) * self.steps_per_epoch
        for epoch, sample in self.left_out:  # of a training whose steps are others: no step's begin
            first = position.sample if epoch == position.epoch else 0
            met = sample >= first and (sample - first) % self.per_step == 0
            rest -= position.epoch <= epoch < epochs and met
        return rest

    def step(self, position: Position) -> list[int]:
        """The samples of the step that begins there, [per_step], the same on every rank."""
        epoch, first = self.begin(position)
        numbers = torch.arange(first, first + self.per_step) % self.samples
        samples: list[int] = self._epoch(epoch)[numbers].tolist()
        return samples

    def _epoch(self, epoch: int) -> Tensor:
        if self._drawn[0] != epoch:
            generator = torch.Generator().manual_seed(derived(self.seed, "order", epoch))
            self._drawn = epoch, torch.randperm(self.samples, generator=generator)
        return self._drawn[1]


class RankOrder(Sampler[Any]):
    """One rank's microbatches, from a position in the data on, without end."""

    def __init__(self, order: Order, start: Position, world: World, accumulate: int) -> None:
        self.order, self.start = order, start
        self.rank, self.world_size, self.accumulate = world.rank, world.size, accumulate

    def __iter__(self) -> Iterator[Microbatch]:
        """A step's samples are dealt out to the ranks in equal, adjoining parts."""
        position = self.start
        own = self.order.per_step // self.world_size
        size = own // self.accumulate
        while True:
            samples = self.order.step(position)[self.rank * own : (self.rank + 1) * own]
            for first in range(0, own, size):
                seed = derived(self.order.seed, "augmentation", *position, self.rank, first)
                yield Microbatch(samples[first : first + size], seed)
            position = self.order.after(position)


class _Seeded(Dataset[Any]):
    """A data set that draws its random numbers by microbatch."""

    def __init__(self, dataset: Samples) -> None:
        self.dataset = dataset

    def __getitems__(self, batch: Microbatch) -> list[Any]:
        if get_worker_info() is not None:  # a process of its own
            seed_all(batch.seed)
            return self._take(batch.indices)
        with seeded(batch.seed):
            return self._take(batch.indices)

    def _take(self, indices: Sequence[int]) -> list[Any]:
        return [self.dataset[index] for index in indices]


def load(dataset: Samples, order: RankOrder, workers: int, device: torch.device) -> Iterator[Any]:
    """The batches of one rank, collated, on its device, without end.

    Args:
        dataset: gives a sample for each index.
        order: which, and when.
        workers: processes that load ahead; 0: this one does it.
        device: to which they are copied.
    """
    loader = DataLoader(
        _Seeded(dataset),
        batch_sampler=order,
        num_workers=workers,
        pin_memory=device.type == "cuda",  # from there a GPU copies without waiting
        collate_fn=default_collate,
        generator=torch.Generator(),  # else each new loader would draw from dropout's numbers
    )
    return (moved_to(device, batch) for batch in loader)


def load_once(dataset: Samples, batch_size: int, world: World) -> Iterator[tuple[Any, int]]:
    """One rank's part of a data set, dealt out by stride so that each sample is there once.

    All ranks get equally many batches, since with FSDP a forward is a collective: who has no
    samples left gets some that do not count.

    Returns:
        Batches, and how many samples of each count.
    """
    mine = range(world.rank, len(dataset), world.size)
    for first in range(0, -(-len(dataset) // world.size), batch_size):
        own = mine[first : first + batch_size]
        batch = default_collate([dataset[index] for index in own or [0]])
        yield moved_to(world.device, batch), len(own)
