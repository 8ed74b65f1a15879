"""DDP, ZeRO and FSDP side by side, and which to choose when.

Exercise
    Train one model by each method. Compare what a rank keeps, the most it holds during a step, the
    bytes that it receives, the time of a step, and the parameters that come out.

Theory
    For S bytes of parameters, Adam, N ranks; bytes in units of (N-1)/N S:

        method             keeps       received  choose it when
        ddp                4 S         2         all of it fits: simplest, fewest messages
        zero1              2 S + 2S/N  3         states do not fit, and gradients must stay whole:
                                                 for hooks on them or torch's clip_grad_norm_
        zero2              S + 3S/N    2         states or gradients do not fit
        fsdp, no reshard   4 S/N       2         whole parameters fit, but not beside gradients on
                                                 their way
        fsdp               4 S/N       3         whole parameters do not fit

    - All compute the same: what differs is where things are, and so the order of sums (1e-7).
    - ZeRO 1 and FSDP pay for memory with half as many bytes again: an all-gather of parameters
      beside what DDP sends. ZeRO 2 does not: it needs one half of DDP's all-reduce for gradients
      and the other for parameters. But these come after the step, where no backward hides them.
    - FSDP sends more and smaller messages, so a slow network's latency hits it first. Units should
      be large enough to hide a gather behind another unit's computation, and small enough for two
      to fit beside the shards.
    - With K microbatches a step DDP and ZeRO average once (`no_sync`), but FSDP gathers for each.
    - The peak is what is kept and what is under way: in ZeRO 2 the gradients on their way out and
      the parts that come in, in FSDP the units around the one that computes.

    Time is shown and not judged: here the ranks share cores, and bytes on loopback cost little. On
    a machine with a network of its own, measure again.

Read
    docs/prove.md, "What it costs"; lab/prove/wrapping.py: how each method wraps a model.
"""

import sys
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise

import torch
from torch import nn

from lab.lessons.notebook import Notebook, main
from lab.lessons.traffic import expect_received
from lab.lessons.vectors import apart
from lab.prove.measure import measure
from lab.prove.recipe import Recipe
from lab.prove.subjects import Subject
from lab.prove.wrapping import on_ranks
from lab.training.world import World

METHODS = {
    "ddp": Recipe(parallel="ddp"),
    "zero1": Recipe(parallel="zero1"),
    "zero2": Recipe(parallel="zero2"),
    "fsdp, no reshard": Recipe(parallel="fsdp", reshard_after_forward=False),
    "fsdp": Recipe(parallel="fsdp"),
}
RECEIVED = {"ddp": 2, "zero1": 3, "zero2": 2, "fsdp, no reshard": 2, "fsdp": 3}
"""In a step, by theory, in units of (N-1)/N S."""
LAYERS, WIDTH, BATCH, STEPS = 6, 256, 32, 5
"""Of the training that is compared and timed."""
MEGA = 1e6


def exercise(notebook: Notebook) -> None:
    """Count bytes, compare what is learned, and time."""
    world = notebook.world
    costs = {name: measure(recipe, world) for name, recipe in METHODS.items()}
    subjects = {name: build(recipe, world) for name, recipe in METHODS.items()}
    steps = {name: step_of(subject, world) for name, subject in subjects.items()}
    for step in steps.values():
        for _ in range(STEPS):
            step()
    learned = {name: subject.parameters() for name, subject in subjects.items()}
    for name, (wire, memory) in costs.items():
        received = None if wire.measured is None else sum(wire.measured) // world.size
        theory = RECEIVED[name] * memory.model * (world.size - 1) / world.size
        expect_received(notebook, f"{name}: bytes received", received, theory)
        difference = apart(learned[name], learned["ddp"])
        notebook.expect_at_most(f"{name}: parameters differ from ddp's by", difference, 1e-5)

    held = [costs[name][1].held for name in ("ddp", "zero1", "zero2", "fsdp")]
    falling = all(more > less for more, less in pairwise(held))
    words = " > ".join(f"{nbytes / MEGA:.2f}" for nbytes in held)
    notebook.judge("MB that ddp, zero1, zero2, fsdp keep", falling, words, "each less")
    peaks = [max(costs[name][1].peak) / MEGA for name in ("fsdp", "ddp")]
    words = f"{peaks[0]:.2f} < {peaks[1]:.2f}"
    notebook.judge("MB at the peak, fsdp and ddp", peaks[0] < peaks[1], words, "less")

    taken = notebook.seconds(steps)
    notebook.table(
        ("method", "keeps MB", "peak MB", "received MB", "ms a step"),
        [
            (
                name,
                memory.held / MEGA,
                max(memory.peak) / MEGA,
                "unknown" if wire.measured is None else max(wire.measured) / MEGA,
                taken[name] * 1e3,
            )
            for name, (wire, memory) in costs.items()
        ],
    )
    for subject in subjects.values():
        subject.close()


def build(recipe: Recipe, world: World) -> Subject:
    """A stack of layers, wrapped, and SGD with momentum: Adam would enlarge differences."""
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS))).to(world.device)
    return on_ranks(replace(recipe, optimizer="sgd", learning_rate=0.1), model, world.device)


def step_of(subject: Subject, world: World) -> Callable[[], None]:
    """A training step on samples of this rank's own."""
    generator = torch.Generator().manual_seed(world.rank)
    inputs = torch.randn(BATCH, WIDTH, generator=generator).to(world.device)

    def step() -> None:
        subject.optimizer.zero_grad()
        subject.model(inputs).square().mean().backward()
        subject.finish_backward()
        subject.optimizer.step()

    return step


if __name__ == "__main__":
    sys.exit(main(exercise))
