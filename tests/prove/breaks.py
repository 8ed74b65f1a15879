"""Implementations with one fault each, which a proof must find."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple
from unittest.mock import patch

import torch
import torch.distributed as dist
from torch import Tensor, nn

from lab.parallel import (
    FullyShardedDataParallel,
    MinimalDDP,
    ZeroRedundancyOptimizer,
    flat_parameter,
)
from lab.parallel.buckets import Bucket
from lab.parallel.comm_hooks import Pending, Work, ordered_hook
from lab.parallel.exchange import Exchange
from lab.prove import Recipe, trace, worker, wrapping


class SkippedSync(MinimalDDP):
    """Rank 1 takes its step with its own gradients, not with the averaged ones."""

    def sync_grads(self) -> None:
        own = [p.grad.clone() for p in self.parameters() if p.grad is not None]
        super().sync_grads()
        if dist.get_rank() == 1:
            for parameter, gradient in zip(self.parameters(), own, strict=True):
                parameter.grad = gradient


class NoSync(MinimalDDP):
    """Nobody averages."""

    def sync_grads(self) -> None:
        pass


class SumNotMean(MinimalDDP):
    def sync_grads(self) -> None:
        super().sync_grads()
        for parameter in self.parameters():
            assert parameter.grad is not None
            parameter.grad *= dist.get_world_size()


class NoBroadcast(MinimalDDP):
    """Each rank begins with the weights of its own seed."""

    def __init__(self, module: nn.Module) -> None:
        nn.Module.__init__(self)
        self.module, self.group = module, None


class OneWeightOff(MinimalDDP):
    """A single weight of the last rank, by a little more than the tolerance, in one step."""

    syncs = 0

    def sync_grads(self) -> None:
        super().sync_grads()
        self.syncs += 1
        if self.syncs == 3 and dist.get_rank() == dist.get_world_size() - 1:
            with torch.no_grad():
                next(self.parameters())[0, 0] += 2e-6


class NotANumber(MinimalDDP):
    def sync_grads(self) -> None:
        super().sync_grads()
        for parameter in self.parameters():
            assert parameter.grad is not None
            parameter.grad.fill_(float("nan"))


class OwnWeights(FullyShardedDataParallel):
    """Each rank's shard comes from the weights of its own seed."""

    def __init__(self, module: nn.Module, **options: Any) -> None:
        super().__init__(module, **{**options, "sync_module_states": False})


class Hoard(Exchange):
    """Keeps a second copy of the gradients that are on their way."""

    def __init__(self, parts: Tensor, group: dist.ProcessGroup | None) -> None:
        self.copy = parts.clone()
        super().__init__(parts, group)


class OtherRate(ZeroRedundancyOptimizer):
    """Rank 1 updates its part with another learning rate, and all ranks get it."""

    def step(self, closure: Any = None) -> Any:
        if dist.get_rank() == 1:
            self.param_groups[0]["lr"] = 1.1e-3
        return super().step(closure)


def _sum_of(tensors: list[Tensor]) -> Tensor:
    total = tensors[0].clone()
    for tensor in tensors[1:]:
        total += tensor
    return total


def backwards_hook(group: Any, bucket: Bucket) -> Pending:
    """Sums from the last rank to the first: close, but other bits."""
    tensors = [torch.empty_like(bucket.buffer()) for _ in range(dist.get_world_size(group))]
    work = dist.all_gather(tensors, bucket.buffer(), group=group, async_op=True)
    return Work(work, lambda: _sum_of(tensors[::-1]).div_(len(tensors)))


def wasteful_hook(group: Any, bucket: Bucket) -> Pending:
    """Everything twice."""
    dist.all_reduce(bucket.buffer().clone(), group=group)
    return ordered_hook(group, bucket)


real_batches, real_run = trace.batches, trace.run_distributed


def rank_0s_batches_for_rank_1(recipe: Recipe, world: Any) -> trace.Trace:
    def batches(recipe: Recipe, rank: int, world_size: int) -> Any:
        return real_batches(recipe, 0 if rank == 1 else rank, world_size)

    with patch.object(trace, "batches", batches):
        return real_run(recipe, world)


class Break(NamedTuple):
    """One fault, and how to ask for what has it."""

    patch: Callable[[], AbstractContextManager[Any]]
    arguments: str
    words: str
    """Of the verdict."""
    ranks_differ: bool = False
    """Whether the ranks' parameters differ among themselves."""


def _in(name: str, fault: Any) -> Callable[[], AbstractContextManager[Any]]:
    return lambda: patch.object(wrapping, name, fault)


BREAKS: dict[str, Break] = {
    kind.__name__: Break(_in("MinimalDDP", kind), "--impl minimal", "from step", differ)
    for kind, differ in (
        (SkippedSync, True),
        (NoSync, True),
        (SumNotMean, False),
        (NoBroadcast, True),
        (OneWeightOff, True),
        (NotANumber, False),
    )
} | {
    "wrong batch on rank 1": Break(
        lambda: patch.object(worker, "run_distributed", rank_0s_batches_for_rank_1),
        "",
        "from step 1 on",
    ),
    "another order": Break(
        _in("ordered_hook", backwards_hook), "--all-reduce ordered", "NOT bitwise equal"
    ),
    "twice the bytes": Break(
        _in("ordered_hook", wasteful_hook),
        "--all-reduce ordered",
        "2.00 times the bytes of the formula 2 (N-1)/N S",
    ),
    "shards of other weights": Break(
        _in("FullyShardedDataParallel", OwnWeights), "--parallel fsdp", "from step 1 on"
    ),
    "one unit": Break(
        _in("units", lambda model: {}), "--parallel fsdp", "whole parameters beside the shards take"
    ),
    "gradients kept": Break(
        lambda: patch.object(flat_parameter, "Exchange", Hoard),
        "--parallel fsdp",
        "a rank's peak is",
    ),
    "another rate, zero1": Break(
        _in("ZeroRedundancyOptimizer", OtherRate), "--parallel zero1", "from step 1 on"
    ),
    "another rate, zero2": Break(
        _in("ZeroRedundancyOptimizer", OtherRate), "--parallel zero2", "from step 1 on"
    ),
}
NOTHING = Break(nullcontext, "", "")
