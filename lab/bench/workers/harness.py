"""What the workers share: ranks that time alternatives in turns, and the result that rank 0 leaves.

Run by hand on two processes: torchrun --nproc-per-node 2 -m lab.bench.workers.ddp step --runs 3
"""

import argparse
import gc
import json
import os
import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from lab.bench.suites import RESULT
from lab.bench.workers.wire_bytes import sent_by_all_nodes
from lab.training.arguments import ArgumentParser, positive_int
from lab.training.checkpoints.files import atomic_file
from lab.training.world import World, join_world

WARM_UP = 2
"""Rounds that do not count: torch's DDP rebuilds its buckets after its first step."""

Calls = Mapping[str, Callable[[], object]]
Rows = list[dict[str, Any]]


@dataclass
class Bench:
    """One section's measurement, on one rank. All methods are collectives."""

    world: World
    runs: int = 15
    width: int = 512
    """Of the MLP's hidden layers; see `models.py`."""
    batch: int = 256
    """Samples per rank and step."""
    max_bytes: int = 16 * 1024 * 1024
    """The largest message of the collectives."""
    notes: list[str] = field(default_factory=list)
    """Sentences to print below the table."""

    def measure(
        self, calls: Calls, runs: int | None = None, between: Callable[[], object] | None = None
    ) -> dict[str, list[float]]:
        """Seconds of each call in each of `runs` rounds (default: the plan's), on the slowest rank.

        In a round all calls take turns, so that a slow moment falls on all of them; in another
        order each time, since it matters who was before (what the caches hold, say). All ranks
        begin a call together. `between` is called after each, outside of its time.
        """
        taken: dict[str, list[float]] = {name: [] for name in calls}
        runs = runs or self.runs
        order = random.Random(0)  # noqa: S311 - the same on every rank, not a secret
        for number in range(WARM_UP + runs):
            this = number - WARM_UP + 1
            self.say(f"round {this} of {runs}" if this > 0 else "warm-up")
            for name in order.sample(list(calls), len(calls)):
                self.synchronize()
                began = time.perf_counter()
                calls[name]()
                self._finish_device()
                taken[name].append(time.perf_counter() - began)
                if between is not None:
                    between()
        counted = [seconds[WARM_UP:] for seconds in taken.values()]
        times = torch.tensor(counted, dtype=torch.float64, device=self.world.device)
        dist.all_reduce(times, op=dist.ReduceOp.MAX)
        return dict(zip(taken, times.tolist(), strict=True))

    def bytes_per_rank(self, call: Callable[[], object], repeat: int = 3) -> float | None:
        """Bytes that a rank sends in one call, headers included; None where nobody counts them."""
        before = self._bytes_sent()
        for _ in range(repeat):
            call()
        after = self._bytes_sent()
        if before is None or after is None:
            return None
        return (after - before) / repeat / self.world.size

    @property
    def others(self) -> float:
        """(N-1)/N: the part of a tensor that is not a rank's own."""
        return (self.world.size - 1) / self.world.size

    def agree(self, value: float) -> float:
        """Rank 0's value, on every rank."""
        shared = torch.tensor([value], dtype=torch.float64, device=self.world.device)
        dist.broadcast(shared, 0)
        return shared.item()

    def say(self, text: str) -> None:
        """Tell whoever waits how far this is."""
        if self.world.is_main:
            print(text, flush=True)

    def synchronize(self) -> None:
        """Wait for all ranks to have finished what they began."""
        self._finish_device()
        dist.barrier()

    def _finish_device(self) -> None:
        if self.world.device.type == "cuda":
            torch.cuda.synchronize()

    def _bytes_sent(self) -> int | None:
        self.synchronize()
        total = sent_by_all_nodes()
        self.synchronize()
        return total


Section = Callable[[Bench], Rows]
"""Measures, and gives the rows of its table."""


def main(sections: Mapping[str, Section], argv: Sequence[str] | None = None) -> int:
    """Run the section that the command line names, as one of the ranks that the environment says.

    Returns:
        The exit code.
    """
    parser = ArgumentParser("lab.bench.workers", description="One section of a benchmark.")
    parser.add_argument("section", choices=list(sections))
    for name in ("runs", "width", "batch", "max-bytes"):
        default = getattr(Bench, name.replace("-", "_"))
        parser.add_argument(f"--{name}", type=positive_int, default=default)
    options = parser.parse_args(argv)
    torch.set_num_threads(1)  # each rank stands for a machine, and the cores are shared
    with join_world(group_of_one=True) as world:
        bench = _bench(world, options)
        rows = sections[options.section](bench)
        # Whatever of the models is left in cycles holds the process group beyond its end.
        gc.collect()
        if world.is_main:
            result = {"torch": torch.__version__, "backend": world.backend, "rows": rows}
            folder = Path(os.environ.get("LAB_RUN_DIR") or ".")
            with atomic_file(folder / RESULT) as file:
                file.write(json.dumps({**result, "notes": bench.notes}).encode())
    return 0


def _bench(world: World, options: argparse.Namespace) -> Bench:
    return Bench(world, options.runs, options.width, options.batch, options.max_bytes)
