"""The sections of `lab bench ddp`: ours and torch's DistributedDataParallel, step by step in turns.

All models of a section are in the same processes and train on the same samples.
"""

import sys
from statistics import median
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy

from lab.bench.compare import MILLI, compared, fastest, ratio, spread, timing
from lab.bench.workers.harness import Bench, Rows, main
from lab.bench.workers.overlap import overlap, overlap_idle
from lab.bench.workers.training import (
    LEARNING_RATE,
    Data,
    Step,
    bare,
    batch_of,
    by_node,
    ours,
    theirs,
    trainer,
    trainers,
)

CAPS = (0.25, 1, 4, 10, 25)
"""Bucket sizes in MiB."""
TUNED = (1, 4)
"""Those that are worth a try without knowing the network."""
MICROBATCHES = 4
BATCHES = (1, 16, 256)


def step(bench: Bench) -> Rows:
    """Defaults, options, and bucket sizes worth a try."""
    tuned: dict[str, Any] = {"gradient_as_bucket_view": True, "static_graph": True}
    models = {
        "torch": theirs(bench),
        "torch, gradient_as_bucket_view": theirs(bench, gradient_as_bucket_view=True),
        "torch, static_graph": theirs(bench, static_graph=True),
        **{f"torch, tuned, {cap} MiB": theirs(bench, bucket_cap_mb=cap, **tuned) for cap in TUNED},
        "ours": ours(bench),
        **{f"ours, {cap} MiB": ours(bench, bucket_cap_mb=cap) for cap in (*TUNED, 25)},
        "ours, each gradient by itself": ours(bench, bucket_cap_mb=0),
    }
    with by_node(bench) as hierarchical:
        data = batch_of(bench, bench.batch)
        taken = bench.measure(trainers({**models, **hierarchical}, data))
    best, ours_best = (
        fastest(taken, [name for name in taken if name.startswith(impl)])
        for impl in ("torch", "ours")
    )
    bench.notes.append(f"batch {bench.batch} on each rank; best: {best}; {ours_best}")
    return compared(taken, {"torch": "torch", "best torch": best})


def buckets(bench: Bench) -> Rows:
    """The curve of step time by bucket size, for both."""
    models = {("ours", 0.0): ours(bench, bucket_cap_mb=0)}
    for cap in CAPS:
        models["torch", cap] = theirs(bench, bucket_cap_mb=cap, gradient_as_bucket_view=True)
        models["ours", cap] = ours(bench, bucket_cap_mb=cap)
    names = {f"{impl} {cap}": (impl, cap) for impl, cap in models}
    taken = bench.measure(
        trainers({name: models[key] for name, key in names.items()}, batch_of(bench, bench.batch))
    )
    best = [fastest(taken, [n for n in names if n.startswith(impl)]) for impl in ("torch", "ours")]
    bench.notes.append(f"batch {bench.batch} on each rank; best: {best[0]} MiB, {best[1]} MiB")
    return [
        {
            "impl": impl,
            "bucket MiB": cap,
            **timing(taken[name]),
            **ratio("best torch", taken[name], taken[best[0]]),
        }
        for name, (impl, cap) in sorted(names.items(), key=lambda item: item[1])
    ]


def options(bench: Bench) -> Rows:
    """Price of find_unused_parameters, saving of static_graph."""
    unused: dict[str, Any] = {"find_unused_parameters": True}
    static: dict[str, Any] = {"static_graph": True}
    models: dict[str, nn.Module] = {}
    for impl, make in (("torch", theirs), ("ours", ours)):
        models[impl] = make(bench)
        models[f"{impl}, find_unused_parameters"] = make(bench, **unused)
        models[f"{impl}, static_graph"] = make(bench, **static)
        models[f"{impl}, both"] = make(bench, **unused, **static)
    taken = bench.measure(trainers(models, batch_of(bench, 1)))
    bench.notes.append("batch 1 on each rank; price: against the same without options")
    rows = []
    for name, seconds in taken.items():
        plain = taken[name.partition(",")[0]]
        price = spread([(a - b) / MILLI for a, b in zip(seconds, plain, strict=True)])
        rows.append({"step": name, **timing(seconds), "price ms": price[0], "quartiles": price[1:]})
    return rows


def no_sync(bench: Bench) -> Rows:
    """Throughput of steps of `MICROBATCHES` microbatches."""
    size = max(1, bench.batch // MICROBATCHES)
    parts = [batch_of(bench, size) for _ in range(MICROBATCHES)]
    calls = {}
    for impl, model in (("torch", theirs(bench)), ("ours", ours(bench))):
        calls[f"{impl}, averaging each"] = _accumulator(model, parts, averaged=MICROBATCHES)
        calls[f"{impl}, no_sync but for the last"] = _accumulator(model, parts, averaged=1)
    taken = bench.measure(calls)
    bench.notes.append(f"{MICROBATCHES} microbatches of {size} on each rank")
    total = MICROBATCHES * size * bench.world.size
    return [
        {
            "step": name,
            "samples/s": total / median(seconds),
            **timing(seconds),
            **ratio("averaging each", seconds, taken[f"{name.partition(',')[0]}, averaging each"]),
        }
        for name, seconds in taken.items()
    ]


def share(bench: Bench) -> Rows:
    """Computation alone, with a barrier instead of the all-reduce, and with it, by batch size."""
    alone, waiting, torch_model, our_model = bare(bench), bare(bench), theirs(bench), ours(bench)
    rows = []
    for batch in BATCHES:
        data = batch_of(bench, batch)
        taken = bench.measure(
            {
                "computation only": trainer(alone, data),
                "and a barrier": trainer(waiting, data, after_backward=dist.barrier),
                "torch": trainer(torch_model, data),
                "ours": trainer(our_model, data),
            }
        )
        computing = taken["computation only"]
        for name, seconds in taken.items():
            shares = [1 - a / b for a, b in zip(computing, seconds, strict=True)]
            middle, *quartiles = spread(shares)
            row = {"batch": batch, "step": name, **timing(seconds)}
            rows.append({**row, "share of synchronisation": middle, "quartiles": quartiles})
    return rows


def mean(bench: Bench) -> Rows:
    """Three ways to average all gradients in one message."""
    numel = sum(parameter.numel() for parameter in bare(bench).parameters())
    gradients = torch.randn(numel, device=bench.world.device)
    size = bench.world.size

    def sum_then_divide() -> None:
        dist.all_reduce(gradients)
        gradients.div_(size)

    def divide_then_sum() -> None:
        gradients.div_(size)
        dist.all_reduce(gradients)

    taken = bench.measure(
        {
            "SUM, then divide": sum_then_divide,
            "divide, then SUM": divide_then_sum,
            "AVG": lambda: dist.all_reduce(gradients, op=dist.ReduceOp.AVG),
        }
    )
    bench.notes.append(f"{gradients.nbytes / 1e6:.1f} MB")
    return compared(taken, {"SUM, then divide": "SUM, then divide"}, what="mean")


def _accumulator(model: nn.Module, parts: list[Data], averaged: int) -> Step:
    """A step of several microbatches of which the last `averaged` ones average the gradients."""
    optimizer = torch.optim.SGD(model.parameters(), lr=LEARNING_RATE)

    def backward(data: Data) -> None:
        cross_entropy(model(data[0]), data[1]).backward()

    def run() -> None:
        optimizer.zero_grad()
        alone = len(parts) - averaged
        for data in parts[:alone]:
            with model.no_sync():  # type: ignore[operator]  # both implementations have it
                backward(data)
        for data in parts[alone:]:
            backward(data)
        optimizer.step()

    return run


SECTIONS = {
    "step": step,
    "buckets": buckets,
    "overlap": overlap,
    "overlap_idle": overlap_idle,
    "options": options,
    "no_sync": no_sync,
    "share": share,
    "mean": mean,
}

if __name__ == "__main__":
    sys.exit(main(SECTIONS))
