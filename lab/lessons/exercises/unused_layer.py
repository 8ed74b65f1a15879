"""A layer skipped in forward: the hang, the rank that caused it, and find_unused_parameters.

Exercise
    Let one rank skip a layer in one step. See what the other ranks do, with the guard of lab's DDP
    switched off and a time-out of a few seconds instead of PyTorch's 30 minutes. Then with the
    guard, then with `find_unused_parameters=True`; then let all ranks skip the layer.

Theory
    A parameter that forward did not use gets no gradient, so its bucket is never complete and never
    sent by that rank. The others have sent theirs, and a collective waits for all: they hang in
    backward, far from the fault, until the time-out. Their error names a time-out or a lost
    connection, the guilty rank has none: it went on, to wait in the next collective.

    - lab's guard looks, when a backward ends, for parameters that got no gradient, and names them
      on the rank where that is so. In a run of `lab` its failure is the first, and ends the others.
    - find_unused_parameters=True walks the graph after each forward to see what is unused, and
      sends zeros for it. The average is the one of a process that has all batches: a rank that did
      not use the layer adds nothing to its gradient. It costs the walk and a small all-reduce.
    - Skipped by all ranks, the parameter keeps `grad` None: optimisers leave it alone, and do not
      even let momentum move it. Zeros would.
    - Where each step skips the same, in no step used at all: freeze it (requires_grad=False) before
      wrapping, and nobody needs to look for it.

Read
    lab/parallel/reducer.py, `_finish`; lab/parallel/reducer_errors.py.
"""

import sys
import time
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.distributed_c10d import _set_pg_timeout

from lab.lessons.notebook import TIMEOUT, Notebook, main
from lab.lessons.vectors import apart, gradients
from lab.parallel import DistributedDataParallel

SHORT = timedelta(seconds=2)
GUILTY = 1
"""The rank that skips the layer."""
SKIPPED = "second.weight"
TOLERANCE = 1e-6


class Model(nn.Module):
    """A layer and one that may be skipped; in: [batch, 4], out: [batch, 4]."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first = nn.Linear(4, 4)
        self.second = nn.Linear(4, 4)

    def forward(self, inputs: Tensor, *, skip: bool) -> Tensor:
        """Without the second layer where `skip`."""
        hidden: Tensor = self.first(inputs)
        return hidden if skip else self.second(hidden)


def exercise(notebook: Notebook) -> None:
    """Four trials, each in a process group of its own: one that timed out is of no more use."""
    world = notebook.world
    guilty = world.rank == GUILTY

    error, seconds, _ = trial(world.rank, skip=guilty, short=True, hang_guard=False)
    notebook.say(f"guard off, rank {GUILTY} skips a layer:", *by_rank(notebook, error))
    failed = [rank for rank, words in enumerate(notebook.gather(error)) if words is not None]
    innocent = [rank for rank in range(world.size) if rank != GUILTY]
    notebook.expect("ranks that fail", failed, innocent)
    waited, least = max(notebook.gather(seconds)), SHORT.total_seconds()
    notebook.judge("after seconds", waited >= least, waited, f"at least {least}")

    error, _, _ = trial(world.rank, skip=guilty, short=True)
    notebook.say(f"with the guard, rank {GUILTY} skips a layer:", *by_rank(notebook, error))
    words = notebook.gather(error)[GUILTY] or "no error"
    notebook.judge(
        "the guilty rank's error names rank and layer",
        f"rank {GUILTY}" in words and SKIPPED in words,
        words.partition(",")[0],
        f"rank {GUILTY} ... {SKIPPED}",
    )

    error, _, model = trial(world.rank, skip=guilty, find_unused_parameters=True)
    notebook.expect("find_unused_parameters, errors", error, None)
    alone = Model()
    for rank in range(world.size):
        (loss(alone, rank, skip=rank == GUILTY) / world.size).backward()
    difference = apart(gradients(model), gradients(alone))
    notebook.expect_at_most("its gradients, difference to one process", difference, TOLERANCE)

    error, _, model = trial(world.rank, skip=True, find_unused_parameters=True)
    notebook.expect("skipped by all ranks, errors", error, None)
    notebook.expect("and the layer's gradient", model.second.weight.grad, None)


def trial(
    rank: int, *, skip: bool, short: bool = False, **options: Any
) -> tuple[str | None, float, Model]:
    """One backward under DDP, on the CPU: gloo raises a time-out, nccl ends the process.

    Args:
        rank: whose samples to take.
        skip: this rank skips the layer.
        short: after construction no collective may take longer than `SHORT`.
        options: of DistributedDataParallel.

    Returns:
        What it raised, the seconds that backward took, the model with its gradients.
    """
    group = dist.new_group(backend="gloo", timeout=TIMEOUT)
    model = Model()
    replica = DistributedDataParallel(model, process_group=group, bucket_cap_mb=0, **options)
    if short:
        _set_pg_timeout(SHORT, group)
    began = time.perf_counter()
    error = None
    try:
        loss(replica, rank, skip=skip).backward()
    except RuntimeError as raised:
        error = str(raised)
    seconds = time.perf_counter() - began
    dist.barrier()  # of the default group, which has had no trouble
    dist.destroy_process_group(group)
    return error, seconds, model


def loss(model: nn.Module, rank: int, *, skip: bool) -> Tensor:
    """Of one rank's samples, which any rank can draw."""
    generator = torch.Generator().manual_seed(rank)
    squares: Tensor = model(torch.randn(8, 4, generator=generator), skip=skip).square()
    return squares.mean()


def by_rank(notebook: Notebook, error: str | None) -> list[str]:
    """A line for each rank."""
    return [f"  rank {rank}: {words}" for rank, words in enumerate(notebook.gather(error))]


if __name__ == "__main__":
    sys.exit(main(exercise))
