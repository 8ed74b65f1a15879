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
from contextlib import nullcontext
from dataclasses import dataclass
from itertools import chain

import torch
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


@dataclass(frozen=True)
class Way:
    """A way to accumulate, and what theory says of it."""

    title: str
    quiet: int
    """How many microbatches, from the first on, are in no_sync."""
    averages: int
    """How many backwards communicate."""
    forward_inside: bool = True


WAYS = (
    Way("without no_sync", 0, MICROBATCHES),
    Way("no_sync, all but the last", MICROBATCHES - 1, 1),
    Way("no_sync, only backward inside", MICROBATCHES - 1, MICROBATCHES, forward_inside=False),
    Way("no_sync, the last one, too", MICROBATCHES, 0),
)


def exercise(notebook: Notebook) -> None:
    """Each way beside one process."""
    world = notebook.world
    everybodys = [microbatches(rank, world.device) for rank in range(world.size)]
    alone = build().to(world.device)
    for inputs, targets in chain(*everybodys):
        (mse_loss(alone(inputs), targets) / MICROBATCHES / world.size).backward()
    expected = gradients(alone)

    for way in WAYS:
        model = DistributedDataParallel(build().to(world.device), bucket_cap_mb=0)
        messages: list[int] = []
        model.register_comm_hook(messages, counting)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            accumulate(model, everybodys[world.rank], way)
        each = len(list(model.parameters()))  # with bucket_cap_mb=0
        notebook.expect(f"{way.title}: messages", len(messages), way.averages * each)
        difference = apart(gradients(model), expected)
        what = f"{way.title}: difference to one process"
        if way.averages:
            notebook.expect_at_most(what, difference, TOLERANCE)
        else:
            notebook.judge(what, difference > TOLERANCE, difference, "nobody averages")
        if not way.forward_inside:
            notebook.judge("a warning says so", bool(caught), len(caught), "at least 1")


def accumulate(model: DistributedDataParallel, data: Data, way: Way) -> None:
    """Add up the gradients of all microbatches."""
    for number, (inputs, targets) in enumerate(data):
        quiet = number < way.quiet
        outputs = None if way.forward_inside else model(inputs)
        with model.no_sync() if quiet else nullcontext():
            if outputs is None:
                outputs = model(inputs)
            (mse_loss(outputs, targets) / MICROBATCHES).backward()


def counting(messages: list[int], bucket: Bucket) -> Pending:
    """A communication hook that notes each message's bytes."""
    messages.append(bucket.buffer().nbytes)
    return allreduce_hook(None, bucket)


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
