"""What a step costs each rank, measured: bytes received and bytes of tensors held.

With a stack of equal layers instead of the Wine classifier: large enough that messages' headers and
activations do not matter.
"""

from functools import partial

import torch
import torch.distributed as dist
from torch import Tensor, nn

from lab.prove.memory import LiveBytes
from lab.prove.recipe import Recipe
from lab.prove.resources import Memory, Wire, held_formula, unsharded_formula, wire_formula
from lab.prove.subjects import Subject
from lab.prove.wire import received_bytes
from lab.prove.wrapping import on_ranks
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
        step()  # it gets to know what lives all the time, as the optimiser's states
        live.peak = 0
        step()
    unsharded = subject.unsharded_bytes()
    received = None if before is None or after is None else (after - before) // MEASURED
    rows = _everybodys([received, *subject.held(), live.peak, unsharded], world)
    counts, parameters, gradients, optimizer, peak, unsharded_peak = rows
    subject.close()

    ours = recipe.impl != "torch"
    words, factor = wire_formula(recipe, world.size)
    wire = Wire(
        measured=_known(counts) if world.backend == "gloo" else None,
        formula=words,
        expected=None if factor is None else round(factor * sum(sizes) * item),
        binding=ours,
    )
    expected = held_formula(recipe, sizes, world.size) * item
    most = unsharded_formula(recipe, sizes, world.size)
    memory = Memory(
        parameters=parameters,
        gradients=gradients,
        optimizer=optimizer,
        peak=peak,
        unsharded=_known(unsharded_peak),
        model=sum(sizes) * item,
        unit=max(sizes) * item,
        expected=expected,
        most=None if most is None else expected + sum(most) * item + ACTIVATIONS,
        unsharded_most=None if most is None else most[0] * item,
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


def _everybodys(mine: list[int | None], world: World) -> list[list[int]]:
    """Each figure of all ranks; -1 for None."""
    row = torch.tensor([-1 if figure is None else figure for figure in mine], device=world.device)
    rows = [torch.empty_like(row) for _ in range(world.size)]
    dist.all_gather(rows, row)
    columns: list[list[int]] = torch.stack(rows, dim=1).tolist()
    return columns


def _known(column: list[int]) -> list[int] | None:
    return None if min(column) < 0 else column
