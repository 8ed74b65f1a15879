"""Why not torch.nn.DataParallel: what it copies, what it loses, where it ends.

Exercise
    torch.nn.DataParallel needs one line and no launcher. Do by hand what it does in each forward:
    copy the model to every device, run the copies on threads, gather outputs. Count the bytes that
    go through device 0, look for what is lost, and compare with DDP.

Theory
    The gradients are right: those of the whole batch. But with N devices and S bytes of parameters

    - every forward copies the model anew, N-1 times, and backward adds N-1 gradients up on device
      0: 2 (N-1) S bytes a step in and out of one device. With DDP replicas stay and the work is
      shared: each rank receives 2 (N-1)/N S and sends as many, N/2 times less;
    - device 0 has the optimiser, all inputs and all outputs as well: memory ends there first;
    - what forward writes into the module is written into a copy, and gone after it: a counter
      stays at 0. Only what changes buffers in place stays, and of device 0's samples alone;
    - N threads of one Python process take turns at whatever is not inside a kernel (the global
      interpreter lock); N processes do not;
    - one process is on one machine. It never spans two nodes.

    Without a GPU it does nothing, and says nothing: the module sees the whole batch.

Read
    torch/nn/parallel/data_parallel.py and replicate.py, whose scheme `OnThreads` follows here on
    CPU threads; https://docs.pytorch.org/docs/stable/notes/cuda.html#cuda-nn-ddp-instead.
"""

import copy
import os
import sys
from collections.abc import Callable
from threading import Thread

import torch
from torch import Tensor, nn
from torch.func import functional_call

from lab.lessons.notebook import Notebook, main
from lab.lessons.traffic import bytes_received, expect_received
from lab.lessons.vectors import apart, gradients
from lab.parallel import DistributedDataParallel

FEATURES, HIDDEN, BATCH = 128, 512, 16
"""The batch is one rank's."""
ROUNDS = 200_000
"""Of a loop in plain Python."""


def exercise(notebook: Notebook) -> None:
    """The same gradients three ways, what they cost, and what is lost."""
    world = notebook.world
    n = world.size
    whole = torch.cat([samples(rank) for rank in range(n)]).to(world.device)
    mine = samples(world.rank).to(world.device)
    alone, threads, replica = Counting(), OnThreads(Counting(), n), Counting()
    ddp = DistributedDataParallel(replica.to(world.device))
    backward(alone.to(world.device), whole)
    backward(threads.to(world.device), whole)
    received = bytes_received(notebook, lambda: backward(ddp, mine))

    expected = gradients(alone)
    for name, model in (("threads", threads), ("DDP", ddp)):
        difference = apart(gradients(model), expected)
        notebook.expect_at_most(f"{name}: gradients differ from one process by", difference, 1e-6)

    size = sum(parameter.nbytes for parameter in alone.parameters())
    through, share = 2 * (n - 1) * size, 2 * (n - 1) / n * size
    notebook.expect("threads: bytes in and out of device 0", threads.copied_bytes, through)
    expect_received(notebook, "DDP: bytes that a rank receives", received, share)
    notebook.expect("threads: samples that the module has counted", threads.module.samples, 0)
    notebook.expect("DDP: samples that the module has counted", replica.samples, BATCH)
    processes = set(notebook.gather((os.environ.get("LAB_NODE"), os.getpid())))
    notebook.expect("DDP: processes", len(processes), n)
    if not torch.cuda.is_available():
        torchs = nn.DataParallel(Counting())
        torchs(whole)
        what = "torch's class without a GPU: samples that the one module saw"
        notebook.expect(what, torchs.module.samples, len(whole))
    time_python(notebook)


def time_python(notebook: Notebook) -> None:
    """A loop in Python N times: on threads of one process, and in N processes."""
    first, n = notebook.world.is_main, notebook.world.size
    taken = notebook.seconds(
        {
            "once": lambda: on_threads(loop, first),
            "threads": lambda: on_threads(loop, first * n),
            "processes": loop,
        }
    )
    times = {name: f"{seconds / taken['once']:.2g} x one" for name, seconds in taken.items()}
    notebook.show(f"time of {n} Python loops on threads", times["threads"], f"{n} x, in turns")
    theory = "1 x, where each has a core"
    notebook.show(f"time of {n} Python loops in processes", times["processes"], theory)


def loop() -> None:
    """What holds the interpreter lock, like all of a model's Python."""
    total = 0
    for number in range(ROUNDS):
        total += number


def on_threads(function: Callable[[], None], count: int) -> None:
    """Run it on so many threads at once."""
    threads = [Thread(target=function) for _ in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


class Counting(nn.Sequential):
    """A model that counts the samples it has seen, as code that logs does."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        super().__init__(nn.Linear(FEATURES, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, FEATURES))
        self.samples = 0

    def forward(self, inputs: Tensor) -> Tensor:
        """[batch, FEATURES] to the same."""
        self.samples += len(inputs)
        outputs: Tensor = super().forward(inputs)  # type: ignore[no-untyped-call]  # torch's
        return outputs


class OnThreads(nn.Module):
    """What torch.nn.DataParallel does, with a thread in the place of each GPU."""

    def __init__(self, module: nn.Module, devices: int) -> None:
        super().__init__()
        self.module = module
        self.devices = devices
        self.copied_bytes = 0
        """Of parameters and gradients, from and to device 0, so far."""

    def forward(self, inputs: Tensor) -> Tensor:
        """Scatter the batch, replicate the model, compute, gather the outputs."""
        parts = inputs.chunk(self.devices)
        outputs: list[Tensor] = [inputs] * len(parts)

        def compute(number: int, replica: nn.Module, parameters: dict[str, Tensor]) -> None:
            outputs[number] = functional_call(replica, parameters, (parts[number],))

        threads = [
            Thread(
                target=compute,
                args=(number, copy.deepcopy(self.module), self.parameters_of(number)),
            )
            for number in range(len(parts))
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return torch.cat(outputs)

    def parameters_of(self, number: int) -> dict[str, Tensor]:
        """Device 0 has them; any other gets copies, whose gradients come back into the sum."""
        named = self.module.named_parameters()
        return {name: self.copied(p) if number else p for name, p in named}

    def copied(self, parameter: Tensor) -> Tensor:
        """A copy that autograd knows of."""

        def count(tensor: Tensor) -> None:
            self.copied_bytes += tensor.nbytes

        replica = parameter.clone()
        replica.register_hook(count)
        count(replica)
        return replica


def samples(rank: int) -> Tensor:
    """A rank's batch, [BATCH, FEATURES]."""
    return torch.randn(BATCH, FEATURES, generator=torch.Generator().manual_seed(rank))


def backward(model: nn.Module, inputs: Tensor) -> None:
    """Of a mean loss."""
    model(inputs).square().mean().backward()


if __name__ == "__main__":
    sys.exit(main(exercise))
