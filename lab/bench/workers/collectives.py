"""The sections of `lab bench collectives`: our algorithms beside those of the backend."""

import sys
from collections.abc import Callable, Mapping
from functools import partial
from statistics import median

import torch
import torch.distributed as dist
from torch import Tensor

from lab.bench.compare import ratio, timing
from lab.bench.workers.harness import Bench, Rows, main
from lab.parallel import all_reduce_ordered, collectives
from lab.parallel.hierarchical import HierarchicalAllReduce
from lab.parallel.wire import Traffic

SIZES = (1 << 10, 16 << 10, 256 << 10, 1 << 20, 4 << 20, 16 << 20)
"""Bytes."""
BACKEND = "torch"
"""Name of the backend's own algorithm in the tables."""

Call = Callable[[], Traffic | None]


def all_reduce(bench: Bench) -> Rows:
    """Ours by algorithm, the ordered one, and the backend's."""

    def calls(whole: Tensor) -> dict[str, Call]:
        return {
            BACKEND: lambda: dist.all_reduce(whole),
            **_ours(("naive", "ring", "doubling"), collectives.all_reduce, whole),
            "ordered": lambda: all_reduce_ordered(whole),
        }

    return _by_size(bench, calls, bus=2 * bench.others, pair=("doubling", "ring"))


def all_gather(bench: Bench) -> Rows:
    """Ours by algorithm, and the backend's."""

    def calls(whole: Tensor) -> dict[str, Call]:
        part = whole.chunk(bench.world.size)[bench.world.rank]
        mine = part.clone()
        return {
            BACKEND: lambda: dist.all_gather_into_tensor(whole, mine),
            **_ours(("naive", "ring", "doubling"), collectives.all_gather, whole, mine),
        }

    return _by_size(bench, calls, bus=bench.others, pair=("doubling", "ring"))


def reduce_scatter(bench: Bench) -> Rows:
    """Ours by algorithm, and the backend's."""

    def calls(whole: Tensor) -> dict[str, Call]:
        part = whole.chunk(bench.world.size)[bench.world.rank].clone()
        return {
            BACKEND: lambda: dist.reduce_scatter_tensor(part, whole),
            **_ours(("naive", "ring"), collectives.reduce_scatter, part, whole),
        }

    return _by_size(bench, calls, bus=bench.others, pair=("naive", "ring"))


def broadcast(bench: Bench) -> Rows:
    """Ours by algorithm, and the backend's."""

    def calls(whole: Tensor) -> dict[str, Call]:
        return {
            BACKEND: lambda: dist.broadcast(whole, 0),
            **_ours(("naive", "tree", "ring"), collectives.broadcast, whole),
        }

    return _by_size(bench, calls, bus=1.0, pair=("tree", "ring"))


def hierarchical(bench: Bench) -> Rows:
    """The all-reduce that knows the nodes, and what it chooses by itself."""
    reducer = HierarchicalAllReduce()

    def calls(whole: Tensor) -> dict[str, Call]:
        return {
            BACKEND: lambda: dist.all_reduce(whole),
            "hierarchical": lambda: reducer.all_reduce(whole, algorithm="hierarchical"),
            f"auto: {reducer.choose(whole)}": lambda: reducer.all_reduce(whole),
        }

    try:
        return _by_size(bench, calls, bus=2 * bench.others, pair=(BACKEND, "hierarchical"))
    finally:
        reducer.close()


def barrier(bench: Bench) -> Rows:
    """What it costs to wait for each other, with nothing to send."""
    one = torch.zeros(1, device=bench.world.device)
    taken = bench.measure(
        {"barrier": dist.barrier, "all-reduce of 4 bytes": lambda: dist.all_reduce(one)}
    )
    return [
        {"call": name, **timing(seconds), **ratio("barrier", seconds, taken["barrier"])}
        for name, seconds in taken.items()
    ]


def _ours(
    algorithms: tuple[str, ...], function: Callable[..., Traffic], *tensors: Tensor
) -> dict[str, Call]:
    return {name: partial(function, *tensors, algorithm=name) for name in algorithms}


def _by_size(
    bench: Bench,
    calls_for: Callable[[Tensor], Mapping[str, Call]],
    bus: float,
    pair: tuple[str, str],
) -> Rows:
    """Rows by size and algorithm.

    Args:
        bench: the ranks.
        calls_for: what to call on a tensor of the size.
        bus: busbw = bus * algbw, so that the bandwidth of a perfect algorithm is the link's at any
            N: https://github.com/NVIDIA/nccl-tests/blob/master/doc/PERFORMANCE.md.
        pair: the algorithm with fewer rounds and the one with fewer bytes, whose crossover to note.
    """
    rows: Rows = []
    medians: list[tuple[int, float]] = []
    for size in (size for size in SIZES if size <= bench.max_bytes):
        numel = -(-size // 4 // bench.world.size) * bench.world.size  # the parts are equal
        whole = torch.zeros(numel, device=bench.world.device)  # sums of zeros stay finite
        calls = calls_for(whole)
        sent = {name: _sent(call()) for name, call in calls.items()}
        bench.say(f"{size} bytes")
        taken = bench.measure(calls)
        for name, seconds in taken.items():
            algbw = whole.nbytes / median(seconds) / 1e6
            rows.append(
                {
                    "bytes": whole.nbytes,
                    "algorithm": name,
                    **timing(seconds),
                    "algbw MB/s": algbw,
                    "busbw MB/s": algbw * bus,
                    "sent bytes": sent[name],
                    **ratio(BACKEND, seconds, taken[BACKEND]),
                }
            )
        few_rounds, few_bytes = (median(taken[name]) for name in pair)
        medians.append((whole.nbytes, few_bytes / few_rounds))
    bench.notes.append(_crossover(medians, *pair))
    return rows


def _crossover(ratios: list[tuple[int, float]], few_rounds: str, few_bytes: str) -> str:
    """Where the algorithm with fewer bytes wins for good. Ratios: its time by the other's."""
    wins = [size for size, value in ratios if value < 1]
    loses = [size for size, value in ratios if value >= 1]
    if not wins or (loses and max(loses) == ratios[-1][0]):
        return f"{few_rounds} beats {few_bytes} up to the largest size"
    if not loses:
        return f"{few_bytes} beats {few_rounds} from the smallest size on"
    return f"{few_bytes} beats {few_rounds} above {max(loses)} bytes"


def _sent(traffic: Traffic | None) -> int | None:
    """Bytes that this rank sent, where the algorithm counts them."""
    return None if traffic is None else traffic.sent_bytes


SECTIONS = {
    "all_reduce": all_reduce,
    "all_gather": all_gather,
    "reduce_scatter": reduce_scatter,
    "broadcast": broadcast,
    "hierarchical": hierarchical,
    "barrier": barrier,
}

if __name__ == "__main__":
    sys.exit(main(SECTIONS))
