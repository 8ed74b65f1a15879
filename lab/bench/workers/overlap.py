"""What overlap gains: the sections `overlap` and `overlap_idle` of `lab bench ddp`."""

from statistics import median

import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy

from lab.bench.compare import compared, fastest
from lab.bench.workers.harness import Bench, Rows
from lab.bench.workers.models import HIDDEN_LAYERS, Pause
from lab.bench.workers.training import (
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
from lab.parallel.buckets import make_buckets
from lab.parallel.comm_hooks import mean_of

CAPS = (1, 4)
"""Bucket sizes in MiB."""
LARGEST_BATCH = 8192


def overlap(bench: Bench) -> Rows:
    """At a batch that computes as long as all buckets travel."""
    late = _Late(bare(bench), CAPS[0])
    batch = _balanced_batch(bench, late, _communication(bench, late))
    bench.notes.append(f"batch {batch} on each rank")
    return _overlap(bench, batch_of(bench, batch), Pause(0))


def overlap_idle(bench: Bench) -> Rows:
    """At a batch of one, and pauses that take as long as all buckets travel.

    The cores are free meanwhile, as where an accelerator computes.
    """
    seconds = _communication(bench, _Late(bare(bench), CAPS[0]))
    bench.notes.append(f"pauses of {seconds:.3f} s in each step, batch 1 on each rank")
    return _overlap(bench, batch_of(bench, 1), Pause(seconds / HIDDEN_LAYERS))


def _overlap(bench: Bench, data: Data, pause: Pause) -> Rows:
    """The same buckets during backward and after it, with a pause after each layer.

    The gain is what is missing to 1 in the first column of ratios.
    """
    models = {"torch": theirs(bench, pause), "ours": ours(bench, pause)}
    for cap in CAPS:
        models[f"torch, {cap} MiB"] = theirs(
            bench, pause, bucket_cap_mb=cap, gradient_as_bucket_view=True
        )
        models[f"ours, {cap} MiB"] = ours(bench, pause, bucket_cap_mb=cap)
    late = {cap: _Late(bare(bench, pause), cap) for cap in CAPS}
    with by_node(bench, pause) as hierarchical:
        calls: dict[str, Step] = {
            "computation only": trainer(bare(bench, pause), data),
            **{f"after backward, {cap} MiB": late[cap].trainer(data) for cap in CAPS},
            **trainers({**models, **hierarchical}, data),
        }
        for step in calls.values():
            step()  # there must be gradients
        taken = bench.measure({"communication only": late[CAPS[0]].average, **calls})
    base = fastest(taken, [name for name in taken if name.startswith("after")])
    return compared(taken, {base: base, "torch": "torch"})


class _Late:
    """A replica whose gradients travel in buckets as well, but only when backward has ended."""

    def __init__(self, module: nn.Module, cap: float) -> None:
        self.module = module
        self.buckets = make_buckets(list(module.parameters()), cap)

    def average(self) -> None:
        """Send all buckets, then wait for all."""
        pending = []
        for bucket in self.buckets:
            bucket.pack()
            pending.append(mean_of(bucket, None, "sum_then_divide", dist.get_world_size()))
        for work in pending:
            work.wait()

    def trainer(self, data: Data) -> Step:
        """Its training step."""
        return trainer(self.module, data, after_backward=self.average)


def _communication(bench: Bench, late: _Late) -> float:
    """Seconds that all buckets take to be averaged."""
    inputs, targets = batch_of(bench, 1)
    cross_entropy(late.module(inputs), targets).backward()  # there must be gradients
    return median(bench.measure({"communication": late.average}, runs=3)["communication"])


def _balanced_batch(bench: Bench, late: _Late, seconds: float) -> int:
    """A batch whose computation takes that long; the same on every rank."""
    batch = 64
    for _ in range(3):
        compute = trainer(late.module, batch_of(bench, batch))
        took = median(bench.measure({"computation": compute}, runs=3)["computation"])
        batch = min(LARGEST_BATCH, max(1, round(batch * seconds / took)))
    return int(bench.agree(batch))
