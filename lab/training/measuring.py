"""Where the time goes: communication, and how much of what the processor can do the model uses."""

import copy
import time
from collections.abc import Callable, Iterable
from types import TracebackType
from typing import Any

import torch
from torch import nn
from torch.utils.data import default_collate

from lab.errors import LabError
from lab.parallel.graph import moved_to
from lab.training.options import Options
from lab.training.order import Samples
from lab.training.progress import Sums
from lab.training.seeding import seeded
from lab.training.world import World

COMMUNICATION = ("gloo:", "nccl:", "ncclDevKernel", "ncclKernel")
"""How the profiler's names of collectives begin: on the CPU, and as kernels of a GPU."""
FIRST, STEPS = 4, 4
"""Which steps are traced: not the first ones, which allocate and rebuild buckets."""


class Measuring:
    """Measures one training, if the options want it. `with` it around the loop."""

    def __init__(
        self,
        options: Options,
        world: World,
        model: nn.Module,
        loss: Callable[[nn.Module, Any], Any],
        data: Samples,
        accumulate: int,
    ) -> None:
        """Count the model's operations, and find out what the processor can do. A collective.

        Args:
            options: measure, profile, precision, batch_size.
            world: the ranks, which measure at the same time.
            model: bare.
            loss: of the model and a batch.
            data: to make a batch of.
            accumulate: microbatches of a step.
        """
        self._options = options
        self._world = world
        self._profiler: Any = None
        self._communication = 0.0
        self._flops: int | None = None
        if options.measure:
            with seeded(options.seed):
                batch = default_collate([data[n % len(data)] for n in range(options.batch_size)])
                self._flops = flops_of(model, loss, batch)
                half = options.precision == "bfloat16"
                dtype = torch.bfloat16 if half else torch.float32
                world.gather()  # begin together: ranks of one machine share it, as in training
                self._reachable = reachable_flops(world.device, dtype)
        self._accumulate = accumulate

    def trace(self, steps: int) -> "Measuring":
        """Look at some of so many steps with torch.profiler, if anything is wanted of it.

        Raises:
            LabError: the folder for traces cannot be made.
        """
        if self._options.profile is not None:
            try:
                self._options.profile.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise LabError(f"--profile {self._options.profile}: {error.strerror}") from error
        if self._options.measure or self._options.profile is not None:
            from torch.profiler import profile, schedule

            active = min(STEPS, max(1, steps - 1))
            first = max(0, min(FIRST, steps - active - 1))
            self._profiler = profile(
                schedule=schedule(wait=first, warmup=1, active=active, repeat=1),
                on_trace_ready=self._traced,
            )
        return self

    def __enter__(self) -> "Measuring":
        if self._profiler is not None:
            self._profiler.__enter__()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._profiler is not None:
            self._profiler.__exit__(kind, error, trace)

    def step(self) -> None:
        """One step is done."""
        if self._profiler is not None:
            self._profiler.step()

    def results(self, total: Sums) -> dict[str, float]:
        """What was measured, as means over the ranks; nothing if it was not wanted. A collective.

        Args:
            total: of all steps.

        Returns:
            `communication`: share of the time with a collective under way. `flops`: operations a
            second and rank. `utilisation`: share of what a large matrix product reaches here,
            which is kinder than the data sheet. The last two not for models that cannot be counted.
        """
        if not self._options.measure or not total.steps:
            return {}
        values = {"communication": self._communication}
        if self._flops is not None:
            flops = self._flops * self._accumulate * total.steps / total.seconds
            values |= {"flops": flops, "utilisation": flops / self._reachable}
        sums = self._world.sum(*values.values())
        return {name: s / self._world.size for name, s in zip(values, sums, strict=True)}

    def _traced(self, profiler: Any) -> None:
        if self._options.profile is not None:
            path = self._options.profile / f"rank{self._world.rank}.json"
            profiler.export_chrome_trace(str(path))
        events = [(e.name, e.time_range.start, e.time_range.end) for e in profiler.events()]
        steps = [(start, end) for name, start, end in events if name.startswith("ProfilerStep")]
        busy = [(start, end) for name, start, end in events if name.startswith(COMMUNICATION)]
        self._communication = covered(busy) / covered(steps)


def covered(spans: Iterable[tuple[float, float]]) -> float:
    """Length of the union of spans (start, end)."""
    total, until = 0.0, float("-inf")
    for start, end in sorted(spans):
        total += max(0.0, end - max(start, until))
        until = max(until, end)
    return total


def flops_of(model: nn.Module, loss: Callable[[nn.Module, Any], Any], batch: Any) -> int | None:
    """Floating-point operations of a forward and a backward, counted without computing them.

    Matrix products, convolutions and attention count, as usual: the rest is small.

    Args:
        model: bare.
        loss: of the model and the batch.
        batch: of tensors.

    Returns:
        None where the model or the loss look at values, so that they cannot run without.
    """
    from torch.utils.flop_counter import FlopCounterMode

    meta = torch.device("meta")
    try:
        with FlopCounterMode(display=False) as counter:
            loss(copy.deepcopy(model).to(meta), moved_to(meta, batch)).backward()
    except RuntimeError:  # NotImplementedError is one
        return None
    return int(counter.get_total_flops())


def reachable_flops(device: torch.device, dtype: torch.dtype, seconds: float = 0.1) -> float:
    """Operations a second that a large matrix product reaches: what a step is held against."""
    size = 4096 if device.type == "cuda" else 512
    matrix = torch.randn(size, size, device=device, dtype=dtype)
    times: list[float] = []
    begun = time.perf_counter()
    while time.perf_counter() - begun < seconds or len(times) < 3:
        started = time.perf_counter()
        matrix @ matrix
        if device.type == "cuda":
            torch.cuda.synchronize()
        times.append(time.perf_counter() - started)
    return float(2 * size**3 / min(times))
