"""How much of a step is synchronisation, at batch 1, 16 and 256.

Exercise
    Time a training step with DDP and without, by batch size. Count what grows with the batch.

Theory
    Computation grows with the batch b: b times the operations for one sample, on each rank.
    Synchronisation does not grow: 2 (N-1)/N S bytes of gradients a step, however many samples they
    are the mean of. So

        share of synchronisation  =  sync / (alone(b) + sync)

    falls as b grows. Take sync from batch 1, and this foretells the others, but for overlap: what
    DDP hides behind backward makes the share smaller, and ranks that share cores make it larger,
    as computing and sending take them from each other.

    - A slow network wants large batches a rank, K microbatches with `no_sync`, or gradients in half
      precision.
    - The same global batch on more ranks is fewer samples a rank: the share grows, and at some N
      more ranks gain nothing. This is why strong scaling ends and weak scaling goes on.

Read
    lab/bench/workers/ddp.py, `share`: the same with torch's DDP, by `lab bench ddp --only share`.
"""

import sys
from collections.abc import Callable

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from lab.lessons.notebook import Notebook, main
from lab.lessons.traffic import bytes_received, expect_received
from lab.parallel import DistributedDataParallel
from lab.training.world import World

BATCHES = (1, 16, 256)
LAYERS, WIDTH = 6, 384
GIGA = 1e9


def exercise(notebook: Notebook) -> None:
    """Count and time a step by batch size."""
    world = notebook.world
    alone, replica = model(world), DistributedDataParallel(model(world))
    size = sum(parameter.nbytes for parameter in alone.parameters())
    theory = 2 * (world.size - 1) / world.size * size
    flops: dict[int, int] = {}
    rows, sync = [], 0.0
    for batch in BATCHES:
        steps = {"alone": step_of(alone, batch, world), "ddp": step_of(replica, batch, world)}
        flops[batch] = operations(steps["alone"])
        steps["ddp"]()
        received = bytes_received(notebook, steps["ddp"])
        taken = notebook.seconds(steps)
        sync = sync or taken["ddp"] - taken["alone"]

        notebook.expect(f"batch {batch}: operations", flops[batch], batch * flops[BATCHES[0]])
        expect_received(notebook, f"batch {batch}: bytes received", received, theory)
        share, foretold = 1 - taken["alone"] / taken["ddp"], sync / (taken["alone"] + sync)
        times = [seconds * 1e3 for seconds in taken.values()]
        rows.append((batch, flops[batch] / GIGA, *times, share, foretold))
    notebook.table(("batch", "GFLOP", "alone ms", "ddp ms", "share", "foretold"), rows)


def model(world: World) -> nn.Module:
    """A stack of equal layers."""
    torch.manual_seed(0)
    return nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS))).to(world.device)


def step_of(model: nn.Module, batch: int, world: World) -> Callable[[], None]:
    """A training step on samples of this rank's own."""
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    inputs = torch.randn(batch, WIDTH, device=world.device)

    def step() -> None:
        optimizer.zero_grad()
        model(inputs).square().mean().backward()
        optimizer.step()

    return step


def operations(step: Callable[[], None]) -> int:
    """Floating-point operations of the matrix products in a step."""
    with FlopCounterMode(display=False) as counter:
        step()
    return int(counter.get_total_flops())


if __name__ == "__main__":
    sys.exit(main(exercise))
