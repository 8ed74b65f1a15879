"""What a step costs each rank, measured: bytes received and bytes of tensors held.

With a stack of equal layers instead of the Wine classifier: large enough that messages' headers and
activations do not matter.
"""

from functools import partial

import torch
import torch.distributed as dist
from torch import Tensor, nn

from lab.prove.memory import LiveBytes, storage_bytes
from lab.prove.recipe import Recipe
from lab.prove.resources import Memory, Wire, memory_formula, wire_formula
from lab.prove.subjects import Subject, on_ranks
from lab.prove.wire import received_bytes
from lab.training.world import World

UNITS, WIDTH = 6, 192
WARM_UP, MEASURED = 2, 1
"""Steps. In the first, optimisers make their states and torch's DDP learns its buckets."""
ACTIVATIONS = 8 * UNITS * WIDTH * 4
"""Bytes that a step of one sample may take for what is no parameter: 8 tensors for each layer."""


def measure(recipe: Recipe, world: World) -> tuple[Wire, Memory]:
    """Train a few steps and measure. A collective; every rank gets all ranks' figures."""
    torch.manual_seed(recipe.seed)
    model = nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(UNITS))).to(world.device)
    sizes = [sum(parameter.numel() for parameter in unit.parameters()) for unit in model]
    item = next(model.parameters()).element_size()
    subject = on_ranks(recipe, model, world.device)
    inputs = torch.randn(1, WIDTH, device=world.device)
    step = partial(_step, recipe, subject, inputs)
    for _ in range(WARM_UP):
        step()

    before = _received()
    for _ in range(MEASURED):
        step()
    after = received_bytes()

    with LiveBytes() as live:
        step()
    parts = [storage_bytes(tensors) for tensors in subject.held()]
    subject.close()
    received = -1 if before is None or after is None else (after - before) // MEASURED
    rows = _everybodys([received, *parts, live.peak], world)

    ours = recipe.impl != "torch"
    words, factor = wire_formula(recipe, world.size)
    held, most = memory_formula(recipe, sizes, world.size)
    counts, parameters, gradients, optimizer, peak = map(list, zip(*rows, strict=True))
    wire = Wire(
        measured=None if min(counts) < 0 or world.backend != "gloo" else counts,
        formula=words,
        expected=None if factor is None else round(factor * sum(sizes) * item),
        binding=ours,
    )
    memory = Memory(
        parameters,
        gradients,
        optimizer,
        peak,
        model=sum(sizes) * item,
        unit=max(sizes) * item,
        expected=held * item,
        most=None if most is None else most * item + ACTIVATIONS,
        binding=ours,
    )
    return wire, memory


def _step(recipe: Recipe, subject: Subject, inputs: Tensor) -> None:
    subject.optimizer.zero_grad()
    with subject.accumulating():
        for _ in range(recipe.accumulate - 1):
            subject.model(inputs).square().mean().backward()
    subject.model(inputs).square().mean().backward()
    subject.finish_backward()
    subject.optimizer.step()


def _received() -> int | None:
    """What this rank has received, read while no other rank sends."""
    dist.barrier()
    count = received_bytes()
    dist.barrier()
    return count


def _everybodys(row: list[int], world: World) -> list[list[int]]:
    mine = torch.tensor(row, device=world.device)
    rows = [torch.empty_like(mine) for _ in range(world.size)]
    dist.all_gather(rows, mine)
    return [[int(value) for value in row] for row in rows]
