"""K microbatches, one all-reduce, and still the gradients of one process.

Exercise
    A batch that does not fit into memory is cut into K microbatches whose gradients add up before
    the optimiser's step. Do that under DDP. Count the messages with and without `no_sync`, and show
    that both give what one process computes from all N x K microbatches.

Theory
    The mean is linear: averaging K times over the ranks and adding up is adding up K times and
    averaging once. So K - 1 of K all-reduces are wasted; `no_sync` leaves them out.

        for number, (inputs, targets) in enumerate(microbatches):
            last = number == len(microbatches) - 1
            with nullcontext() if last else model.no_sync():
                loss = loss_fn(model(inputs), targets) / len(microbatches)   # the mean over K, too
                loss.backward()
        optimizer.step()

    - forward belongs inside as well: it decides whether this backward communicates. With only
      `loss.backward()` inside, nothing is saved; ours says so in a warning.
    - Where the last microbatch is left inside too, nobody averages, and the ranks part.
    - The sum of a float has the bits of its order, so the two ways may differ by rounding (1e-7).

Read
    lab/parallel/ddp.py, `no_sync`; lab/parallel/reducer.py, `expect_nothing`.
"""

import sys
import warnings
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.functional import mse_loss

from lab.lessons.notebook import Notebook, main
from lab.lessons.vectors import apart, gradients
from lab.parallel import DistributedDataParallel
from lab.parallel.buckets import Bucket
from lab.parallel.comm_hooks import Pending, allreduce_hook

MICROBATCHES = 4
SAMPLES, FEATURES = 8, 16
"""Of a microbatch."""
TOLERANCE = 1e-6

Data = list[tuple[Tensor, Tensor]]


def exercise(notebook: Notebook) -> None:
    """Three ways to accumulate, each beside one process."""
    world = notebook.world
    everybodys = [microbatches(rank, world.device) for rank in range(world.size)]
    mine = everybodys[world.rank]

    alone = build().to(world.device)
    for batches in everybodys:
        for inputs, targets in batches:
            (mse_loss(alone(inputs), targets) / MICROBATCHES / world.size).backward()
    expected = gradients(alone)

    messages = []

    def counting(state: None, bucket: Bucket) -> Pending:
        messages.append(bucket.index())
        return allreduce_hook(state, bucket)

    def accumulate(inside: Callable[[int], bool], *, only_backward: bool = False) -> Tensor:
        """The gradient; `inside` says which microbatches are in no_sync."""
        torch.manual_seed(0)
        model = DistributedDataParallel(build().to(world.device), bucket_cap_mb=0)
        model.register_comm_hook(None, counting)
        messages.clear()
        for number, (inputs, targets) in enumerate(mine):
            quiet: AbstractContextManager[None] = nullcontext()
            if inside(number):
                quiet = model.no_sync()
            outputs = model(inputs) if only_backward else None
            with quiet:
                outputs = model(inputs) if outputs is None else outputs
                (mse_loss(outputs, targets) / MICROBATCHES).backward()
        buckets.append(len(model.reducer.buckets))
        return gradients(model)

    buckets: list[int] = []
    each = accumulate(lambda _: False)
    notebook.expect("messages without no_sync", len(messages), MICROBATCHES * buckets[0])
    what = "difference to one process, without no_sync"
    notebook.expect_at_most(what, apart(each, expected), TOLERANCE)

    last = accumulate(lambda number: number < MICROBATCHES - 1)
    notebook.expect("messages with no_sync for all but the last", len(messages), buckets[0])
    what = "difference to one process, with no_sync"
    notebook.expect_at_most(what, apart(last, expected), TOLERANCE)

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        accumulate(lambda number: number < MICROBATCHES - 1, only_backward=True)
    notebook.expect("messages with only backward inside", len(messages), MICROBATCHES * buckets[0])
    notebook.judge("a warning says so", bool(caught), len(caught), "at least 1")

    never = accumulate(lambda _: True)
    notebook.expect("messages with the last one inside, too", len(messages), 0)
    lowest, highest = never.clone(), never.clone()
    dist.all_reduce(lowest, op=dist.ReduceOp.MIN)
    dist.all_reduce(highest, op=dist.ReduceOp.MAX)
    parted = apart(highest, lowest)
    notebook.judge("and the ranks' gradients part by", parted > 0, parted, "more than 0")


def build() -> nn.Module:
    """The same weights on every rank."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(FEATURES, 32), nn.ReLU(), nn.Linear(32, 1))


def microbatches(rank: int, device: torch.device) -> Data:
    """The K microbatches of a rank, which any rank can draw."""
    generator = torch.Generator().manual_seed(1000 + rank)
    return [
        (
            torch.randn(SAMPLES, FEATURES, generator=generator).to(device),
            torch.randn(SAMPLES, 1, generator=generator).to(device),
        )
        for _ in range(MICROBATCHES)
    ]


if __name__ == "__main__":
    sys.exit(main(exercise))
