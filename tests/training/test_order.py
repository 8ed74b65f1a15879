"""Which samples a step takes: every sample once an epoch, the same on any number of ranks."""

from itertools import islice

import pytest
import torch
from torch.utils.data import TensorDataset

from lab.training.order import Microbatch, Order, Position, RankOrder, load_once
from lab.training.seeding import derived, seed_all, seeded
from lab.training.world import World


def world(rank: int, size: int) -> World:
    return World(rank, size, torch.device("cpu"), "none")


def taken(order: Order, size: int, accumulate: int, steps: int, start: Position) -> list[list[int]]:
    """The samples of each step, by what all ranks take of it, in order."""
    ranks = [
        list(islice(RankOrder(order, start, world(rank, size), accumulate), steps * accumulate))
        for rank in range(size)
    ]
    return [
        [
            sample
            for microbatches in ranks
            for microbatch in microbatches[step * accumulate : (step + 1) * accumulate]
            for sample in microbatch.indices
        ]
        for step in range(steps)
    ]


@pytest.mark.parametrize("samples", [1, 7, 24, 25])
def test_an_epoch_has_every_sample(samples: int) -> None:
    order = Order(samples, 8, seed=3)
    epoch = [
        sample for step in taken(order, 2, 2, order.steps_per_epoch, Position()) for sample in step
    ]
    assert sorted(epoch[:samples]) == list(range(samples))
    assert len(epoch) == order.steps_per_epoch * 8
    assert epoch[samples:] == (epoch[:samples] * 8)[: len(epoch) - samples]


@pytest.mark.parametrize(("size", "accumulate"), [(1, 1), (1, 8), (2, 2), (4, 1), (8, 1)])
@pytest.mark.parametrize("skipped", [0, 2, 3, 5])
def test_a_step_has_the_same_samples_whoever_takes_them(
    size: int, accumulate: int, skipped: int
) -> None:
    order = Order(25, 8, seed=3)
    whole = taken(order, 1, 1, 8, Position())
    position = Position()
    for _ in range(skipped):
        position = order.after(position)
    assert taken(order, size, accumulate, 8 - skipped, position) == whole[skipped:]


def test_each_epoch_and_seed_has_an_order_of_its_own() -> None:
    orders = [Order(50, 50, seed=seed).step(Position(epoch)) for seed in (0, 1) for epoch in (0, 1)]
    assert len(set(map(tuple, orders))) == 4


@pytest.mark.parametrize(
    "start", [Position(), Position(0, 8), Position(1, 24), Position(2, 0), Position(3, 0)]
)
def test_steps_until(start: Position) -> None:
    order, position, steps = Order(25, 8, seed=0), start, 0
    while position.epoch < 3:
        position, steps = order.after(position), steps + 1
    assert order.steps_until(start, 3) == steps


LEFT_OUT = [
    *([(0, 8)], [(0, 0)], [(0, 24)], [(1, 0), (1, 8)], [(2, 24)], [(0, 16), (0, 24), (1, 8)]),
    [(0, 4), (5, 0)],  # where no step begins
]


@pytest.mark.parametrize("left_out", LEFT_OUT)
@pytest.mark.parametrize("start", [Position(), Position(0, 8), Position(1, 0)])
def test_what_is_left_out_is_not_taken_and_all_else_is(
    left_out: list[tuple[int, int]], start: Position
) -> None:
    order, all_of_it = Order(25, 8, seed=0), Order(25, 8, seed=0)
    order.left_out = tuple(Position(*each) for each in left_out)
    wanted, ends = [], 0
    position = start
    while position.epoch < 3:
        if position not in order.left_out:
            wanted.append(all_of_it.step(position))
        position = all_of_it.after(position)
        ends += position.sample == 0
    assert order.steps_until(start, 3) == len(wanted)
    assert taken(order, 2, 2, len(wanted), start) == wanted
    position = start
    for _ in wanted:
        position = order.after(position)
        ends -= position.sample == 0
    assert (position.epoch, ends) == (3, 0), "each epoch's end is seen"


def test_every_microbatch_has_a_seed_of_its_own() -> None:
    microbatches: list[Microbatch] = [
        microbatch
        for rank in range(2)
        for microbatch in islice(RankOrder(Order(16, 8, 0), Position(), world(rank, 2), 2), 12)
    ]
    assert len({microbatch.seed for microbatch in microbatches}) == 24


@pytest.mark.parametrize("samples", [1, 3, 4, 35, 36])
def test_each_held_out_sample_counts_once(samples: int) -> None:
    data = TensorDataset(torch.arange(samples))
    counted = []
    batches = []
    for rank in range(4):
        own = list(load_once(data, 2, world(rank, 4)))
        batches.append(len(own))
        counted += [sample for (batch,), count in own for sample in batch[:count].tolist()]
    assert sorted(counted) == list(range(samples))
    assert len(set(batches)) == 1, "a rank would run a forward alone"


def test_derived_seeds_are_unlike_each_other() -> None:
    seeds = {derived(seed, part, rank) for seed in range(8) for part in "ab" for rank in range(8)}
    assert len(seeds) == 128
    assert derived(1, "a") == derived(1, "a") < 2**63


def test_seeded_leaves_no_trace() -> None:
    seed_all(1)
    expected = torch.rand(2).tolist()
    seed_all(1)
    with seeded(2):
        inside = torch.rand(2).tolist()
    assert torch.rand(2).tolist() == expected != inside
