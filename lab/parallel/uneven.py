"""Uneven inputs: ranks that have no input left keep the others company.

Collectives want all ranks. So when a rank leaves its loop before the others, `Join` (from
torch.distributed.algorithms.join, which `DistributedDataParallel.join` returns) has it do the
communication of their forwards and backwards, with zeros, until the last rank is through.
Each forward inside `join` begins with two small all-reduces: Join's own, which counts, and one that
says what this forward is going to communicate.
"""

from typing import TYPE_CHECKING

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.join import Join, JoinHook

from lab.parallel.replicas import broadcast_
from lab.parallel.sync_batchnorm import SyncBatchNorm

if TYPE_CHECKING:
    from lab.parallel.ddp import DistributedDataParallel
    from lab.parallel.reducer import Reducer

ABSENT, ONLY_FORWARD, AVERAGES = range(3)
"""What a rank tells the others before each forward: no input; no_sync or no_grad; all of it."""


def check_forward(module: nn.Module) -> None:
    """Make sure that forward does not wait for others: ranks without input run none.

    Raises:
        ValueError: the module has a SyncBatchNorm, ours or torch's.
    """
    for name, inner in module.named_modules():
        if isinstance(inner, SyncBatchNorm | nn.SyncBatchNorm):
            raise ValueError(
                f"{name or 'the module'} is a SyncBatchNorm, whose forward waits for all ranks, "
                "also for those without input: use join(throw_on_early_termination=True)"
            )


def meet_shadows(model: "DistributedDataParallel", reducer: "Reducer", average: bool) -> int:
    """Tell ranks without input what this forward is going to do.

    Args:
        model: with `Join`'s configuration.
        reducer: gets the divisor for this step.
        average: whether gradients are to be averaged.

    Returns:
        The rank of the group whose buffers count: the last that averages, as in torch.
    """
    work = Join.notify_join_context(model)
    if work is not None:
        work.wait()
    return _agree(model, reducer, AVERAGES if average else ONLY_FORWARD)


def _agree(model: "DistributedDataParallel", reducer: "Reducer", state: int) -> int:
    """Exchange states, and set the divisor; the last rank that averages, or -1."""
    group = model.process_group
    size = dist.get_world_size(group)
    states = torch.zeros(size, dtype=torch.int32, device=model.device)
    states[dist.get_rank(group)] = state
    dist.all_reduce(states, group=group)
    everybodys = states.tolist()
    present = size - everybodys.count(ABSENT)
    reducer.divisor = size if reducer.divide_by_initial_world_size else present
    return max((rank for rank in range(size) if everybodys[rank] == AVERAGES), default=-1)


class Shadow(JoinHook):
    """What `Join` calls on ranks that have no more input."""

    def __init__(self, model: "DistributedDataParallel", reducer: "Reducer") -> None:
        self.model = model
        self.reducer = reducer

    def main_hook(self) -> None:
        """While others still have input: once for each of their forwards."""
        source = _agree(self.model, self.reducer, ABSENT)
        if source < 0:
            return
        if self.model.forward_sync_buffers:
            broadcast_(self.model.module.buffers(), source, self.model.process_group)
        self.reducer.shadow_backward()

    def post_hook(self, is_last_joiner: bool) -> None:
        """When nobody has any: the ranks that went on until now have the newest parameters."""
        group = self.model.process_group
        self.reducer.divisor = dist.get_world_size(group)
        rank = dist.get_rank(group) if is_last_joiner else -1
        newest = torch.tensor([rank], device=self.model.device)
        dist.all_reduce(newest, op=dist.ReduceOp.MAX, group=group)
        self.model.broadcast_state(source=int(newest))
