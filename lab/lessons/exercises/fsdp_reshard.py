"""FSDP: what resharding after forward frees, and what it costs.

Exercise
    Shard a model of equal blocks over the ranks. Count the bytes of parameters that a rank holds
    between steps, when forward has ended, and at most during a step: with resharding after forward
    and without. Count what is sent in each case.

Theory
    S bytes of parameters, N ranks, L blocks of S/L. Between steps a rank holds its shards: S/N,
    each block padded to a multiple of N elements. A block's whole parameters are gathered just
    before it computes. Then:

                          when forward has ended   at most        sent by a rank in a step
        reshard           0                        2 S/L          3 (N-1)/N S
        no reshard        S                        S              2 (N-1)/N S

    With resharding each block is freed after its forward and gathered once more for backward, so it
    pays one gather more, (N-1)/N S, and frees S. At most two blocks are whole: one computes, the
    next is on its way. DDP holds S all the time and sends 2 (N-1)/N S: without resharding FSDP
    sends the same bytes, and still saves gradients and optimiser states between steps.

    The results are the same bits: only when parameters are there differs.

    Reshard where the whole model does not fit; keep it (SHARD_GRAD_OP) where it does and the
    network is slow.

Read
    lab/parallel/fsdp_conductor.py: who is gathered and freed when; lab/parallel/meter.py.
"""

import sys
from functools import partial

import torch
from torch import Tensor, nn
from torch.distributed.fsdp.wrap import ModuleWrapPolicy
from torch.nn.functional import mse_loss

from lab.lessons.notebook import Notebook, main
from lab.lessons.vectors import apart, gradients
from lab.parallel import FullyShardedDataParallel, ShardingStrategy
from lab.prove.memory import LiveBytes

BLOCKS, WIDTH = 8, 192
SAMPLES = 4
STRATEGIES = {
    "reshard": ShardingStrategy.FULL_SHARD,
    "no reshard": ShardingStrategy.SHARD_GRAD_OP,
}


def exercise(notebook: Notebook) -> None:
    """Count both ways, compare, time."""
    world = notebook.world
    torch.manual_seed(world.rank)
    inputs, targets = (torch.randn(SAMPLES, WIDTH, device=world.device) for _ in range(2))
    models = {name: build(how, world.device) for name, how in STRATEGIES.items()}

    elements = WIDTH * WIDTH + WIDTH
    shard = -(-elements // world.size) * torch.float32.itemsize  # of a block
    block = shard * world.size
    others = (world.size - 1) * BLOCKS * shard  # (N-1)/N S
    theory = {
        "reshard": (0, 2 * block, 3 * others),
        "no reshard": (BLOCKS * block, BLOCKS * block, 2 * others),
    }
    live = {}
    for name, model in models.items():
        notebook.expect(f"{name}: bytes between steps", model.shard_bytes(), BLOCKS * shard)
        meter = model.meter
        sent = meter.sent_bytes
        with LiveBytes() as watch:
            outputs = model(inputs)
            live[name] = watch.live()
        kept = meter.parameters.now
        mse_loss(outputs, targets).backward()
        del outputs
        measured = kept, meter.parameters.peak, meter.sent_bytes - sent
        columns = ("whole parameters after forward", "whole parameters at most", "bytes sent")
        for column, found, expected in zip(columns, measured, theory[name], strict=True):
            notebook.expect(f"{name}: {column}", found, expected)
    freed = live["no reshard"] - live["reshard"]  # the order check has a few bytes of its own
    missing = abs(1 - freed / (BLOCKS * block))
    notebook.say(f"of all tensors that live after forward, {freed} bytes less with resharding")
    notebook.expect_at_most("part by which that misses S", missing, 0.01)
    difference = apart(*(gradients(model) for model in models.values()))
    notebook.expect("difference between their gradients", difference, 0.0)

    steps = {name: partial(step, model, inputs, targets) for name, model in models.items()}
    times = notebook.seconds(steps)
    slower = times["reshard"] / times["no reshard"]
    notebook.show("time, reshard / no reshard", slower, "about 3/2, where the wire is all")


def build(strategy: ShardingStrategy, device: torch.device) -> FullyShardedDataParallel:
    """Equal blocks, each a unit. In and out: [batch, 192]."""
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(BLOCKS))).to(device)
    return FullyShardedDataParallel(
        model, sharding_strategy=strategy, auto_wrap_policy=ModuleWrapPolicy({nn.Linear})
    )


def step(model: nn.Module, inputs: Tensor, targets: Tensor) -> None:
    """Forward and backward, with averages."""
    model.zero_grad()
    mse_loss(model(inputs), targets).backward()


if __name__ == "__main__":
    sys.exit(main(exercise))
