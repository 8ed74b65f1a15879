"""A barrier instead of the all-reduce: in step, and apart.

Exercise
    Replace the averaging of gradients by `dist.barrier()` after each backward. Is it still data
    parallelism? What does waiting for each other cost by itself?

Theory
    A barrier orders time and carries no data.

    - Nobody leaves it before the last rank has come: whoever is slow slows all.
    - Parameters are bit by bit those of a rank that trains by itself, so ranks are apart from
      step 1 on, although they make all steps together.
    - An all-reduce is a barrier as well: its sum needs every rank's part. A barrier before it or
      after it adds time and nothing else; a training needs one only around things that no
      collective orders, such as a file that rank 0 writes and the others read.
    - It sends a few bytes, so its time is latency alone. What an all-reduce takes longer is what
      its bytes take.

Read
    docs/bench.md, `lab bench collectives --only barrier`; lab/parallel/minimal.py.
"""

import sys
import time
from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from lab.lessons.notebook import Notebook, main
from lab.lessons.vectors import apart, parameters
from lab.parallel import all_reduce_grads_
from lab.training.data import wine_split
from lab.training.wine import WineClassifier
from lab.training.world import World

STEPS = 10
LATE = 0.2
"""Seconds by which rank 0 comes late."""
ELEMENTS = 1 << 20
"""Of the larger all-reduce that is timed, in float32."""

Sync = Callable[[nn.Module], object]
"""What follows backward."""


def exercise(notebook: Notebook) -> None:
    """Train alone, with a barrier and with the all-reduce; then look at the barrier by itself."""
    world = notebook.world
    alone = train(world, lambda _: None)
    in_step = train(world, lambda _: dist.barrier())
    averaged = train(world, all_reduce_grads_)
    change = apart(in_step, alone)
    notebook.expect("a rank with barriers differs from itself without by", change, 0.0)
    notebook.expect("ranks with barriers are equal", all_equal(notebook.gather(in_step)), False)
    notebook.expect("ranks with all-reduce are equal", all_equal(notebook.gather(averaged)), True)

    small, large = (torch.zeros(count, device=world.device) for count in (1, ELEMENTS))
    calls = {
        "barrier": dist.barrier,
        f"all-reduce of {small.nbytes} bytes": lambda: dist.all_reduce(small),
        f"all-reduce of {large.nbytes >> 20} MiB": lambda: dist.all_reduce(large),
    }
    for name, call in calls.items():
        waited = min(notebook.gather(seconds_with_a_late_rank(world, call)))
        what = f"{name}: shortest stay when rank 0 is {LATE} s late, s"
        notebook.judge(what, waited >= LATE, waited, f"at least {LATE}")
    taken = notebook.seconds(calls)
    notebook.table(("when all come together", "ms"), [(n, s * 1e3) for n, s in taken.items()])


def train(world: World, sync: Sync) -> Tensor:
    """This rank's parameters after some steps on its own samples, [P]; all ranks begin equal."""
    torch.manual_seed(0)
    model = WineClassifier().to(world.device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    inputs, targets = (tensor.to(world.device) for tensor in wine_split().train.tensors)
    mine = slice(world.rank, None, world.size)
    for _ in range(STEPS):
        optimizer.zero_grad()
        cross_entropy(model(inputs[mine]), targets[mine]).backward()
        sync(model)
        optimizer.step()
    return parameters(model).cpu()


def all_equal(replicas: list[Tensor]) -> bool:
    """Bit by bit."""
    return all(torch.equal(replica, replicas[0]) for replica in replicas)


def seconds_with_a_late_rank(world: World, call: Callable[[], object]) -> float:
    """How long this rank is in `call`, which rank 0 enters late.

    The time begins before a first barrier. Rank 0 leaves that one after all ranks have begun, and
    only then waits, so theory promises its whole delay to every rank, on any machine.
    """
    began = time.perf_counter()
    dist.barrier()
    if world.is_main:
        time.sleep(LATE)
    call()
    if world.device.type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - began


if __name__ == "__main__":
    sys.exit(main(exercise))
