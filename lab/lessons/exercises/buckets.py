"""Bucket sizes on a deep model: how many messages a step takes, and what each size costs.

Exercise
    Train a deep model of small layers under DDP with buckets of several sizes, from each gradient
    by itself to all in one. Predict how many messages a step takes. Find the best size here.

Theory
    A message of S bytes takes about a + S/b seconds: latency and bandwidth. In buckets, the same
    bytes travel in fewer messages, so that less latency is paid; but a bucket leaves only when its
    last gradient is there, and the last bucket always leaves when nothing is left to hide behind.
    Small buckets overlap, large ones are cheap; the best is between. torch's default is 25 MiB
    after a first one of 1 MiB, made for models of hundreds of MiB: one of 3 MiB gets no overlap at
    all. `bucket_cap_mb=None` in lab.parallel makes 16 or so, of at least 4 MiB.

    Gradients come from the last layer to the first, so buckets are filled in reverse order, and one
    is closed by the gradient that makes it reach the size.

    The sums are the same, up to rounding: in a ring, which rank adds first depends on the place in
    the message, so for N > 2 another bucket size may give other last bits.

Read
    lab/parallel/buckets.py, `divide`. `lab bench ddp --only buckets` measures larger models.
"""

import sys
from functools import partial

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.functional import mse_loss

from lab.lessons.notebook import Notebook, main
from lab.lessons.vectors import apart, gradients
from lab.parallel import DistributedDataParallel
from lab.parallel.buckets import Bucket
from lab.parallel.comm_hooks import Pending, allreduce_hook

DEPTH, WIDTH = 48, 128
SAMPLES = 4
CAPS = (0, 0.1, 0.5, 1, 25, None)
"""MiB; None: the default here."""
MEBIBYTE = 2**20
TOLERANCE = 1e-6


def exercise(notebook: Notebook) -> None:
    """Count, compare and time."""
    world = notebook.world
    torch.manual_seed(world.rank)
    inputs, targets = (torch.randn(SAMPLES, WIDTH, device=world.device) for _ in range(2))
    sizes = [parameter.nbytes for parameter in build().parameters()]

    models: dict[str, DistributedDataParallel] = {}
    messages: dict[str, list[int]] = {}
    for cap in CAPS:
        name = "default" if cap is None else f"{cap:g} MiB"
        models[name] = DistributedDataParallel(build().to(world.device), bucket_cap_mb=cap)
        messages[name] = []
        models[name].register_comm_hook(messages[name], measured)
        step(models[name], inputs, targets)
        expected = predicted(sizes, 4.0 if cap is None else cap)  # for a model below 64 MiB
        notebook.expect(f"messages, {name}", len(messages[name]), expected)
    for total in {sum(sent) for sent in messages.values()}:
        notebook.expect("bytes of a step, whatever the size", total, sum(sizes))
    alone = gradients(models["0 MiB"])
    worst = max(apart(gradients(model), alone) for model in models.values())
    bound = 0.0 if world.size <= 2 else TOLERANCE
    notebook.expect_at_most("difference between their gradients", worst, bound)

    counts = {name: len(sent) for name, sent in messages.items()}
    steps = {name: partial(step, model, inputs, targets) for name, model in models.items()}
    times = notebook.seconds(steps)
    rows = [(name, counts[name], 1e3 * seconds) for name, seconds in times.items()]
    notebook.table(("bucket", "messages", "ms"), rows)

    tiny = torch.zeros(1, device=world.device)
    latency = notebook.seconds({"tiny": partial(dist.all_reduce, tiny)}, 20)["tiny"]
    saved = times["0 MiB"] - times["25 MiB"]
    fewer = len(sizes) - 1  # each by itself against all in one
    notebook.show(
        "each message more costs", f"{1e6 * saved / fewer:.0f} us", f"{1e6 * latency:.0f} us alone"
    )
    best = min(times, key=lambda name: times[name])
    notebook.show("the best of them here", best, "neither the smallest nor the largest")


def predicted(sizes: list[int], cap: float) -> int:
    """Count buckets: filled in reverse order, closed by what makes them reach the cap in MiB."""
    count, filled = 0, 0
    for size in reversed(sizes):
        filled += size
        if filled >= cap * MEBIBYTE:
            count, filled = count + 1, 0
    return count + (filled > 0)


def measured(messages: list[int], bucket: Bucket) -> Pending:
    """A communication hook that notes each message's bytes."""
    messages.append(bucket.buffer().nbytes)
    return allreduce_hook(None, bucket)


def build() -> nn.Sequential:
    """Deep: 48 layers of 128, 96 parameters of 3.0 MiB together. In and out: [batch, 128]."""
    torch.manual_seed(0)
    return nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(DEPTH)))


def step(model: nn.Module, inputs: Tensor, targets: Tensor) -> None:
    """Forward and backward, with averages."""
    model.zero_grad()
    mse_loss(model(inputs), targets).backward()


if __name__ == "__main__":
    sys.exit(main(exercise))
