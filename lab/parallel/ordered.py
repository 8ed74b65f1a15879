"""The all-reduce that adds in rank order: bitwise what one process computes, at any N.

Floating-point addition is not associative, so a sum depends on its order. A ring adds each part of
the tensor in another order, recursive doubling adds in pairs; from 3 ranks on both differ in the
last bits from one process that accumulates the ranks' gradients one after another. Here each rank
gets everybody's contribution to its own N-th of the tensor (all-to-all), adds them in rank order,
and the sums are gathered. It sends what a ring sends, 2 (N-1)/N S per rank.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor

from lab.parallel.streams import used_on_current_stream


def sum_in_rank_order(
    contributions: Sequence[Tensor] | Tensor, dtype: torch.dtype | None = None
) -> Tensor:
    """((c0 + c1) + c2) + ... of N, one for each rank, in `dtype`; default their own."""
    total = contributions[0].to(dtype or contributions[0].dtype, copy=True)
    for contribution in contributions[1:]:
        total += contribution
    return total


def all_reduce_ordered(tensor: Tensor, group: dist.ProcessGroup | None = None) -> None:
    """Replace each rank's tensor by ((t0 + t1) + t2) + ..., in place, the same bits on all ranks.

    Args:
        tensor: any shape, contiguous; the same shape and dtype on every rank, summed in that dtype.
        group: default all ranks.

    Raises:
        ValueError: the tensor is not contiguous.
    """
    start_all_reduce_ordered(tensor, group).wait()


def start_all_reduce_ordered(
    tensor: Tensor, group: dist.ProcessGroup | None = None
) -> "OrderedAllReduce":
    """Begin the same in the background; `wait()` finishes it.

    Args and raises: as `all_reduce_ordered`. The tensor must not be touched before `wait()`, and
    all ranks must wait for several of these in the same order, for `wait()` communicates as well.
    """
    if not tensor.is_contiguous():
        raise ValueError("the tensor must be contiguous: call contiguous() first")
    size = dist.get_world_size(group)
    flat = tensor.detach().view(-1)
    # all-to-all and all-gather want equal parts: pad to a multiple of N (of nothing: to one each).
    length = max(1, -(-len(flat) // size))
    padded = flat.new_zeros(size * length)
    padded[: len(flat)] = flat
    contributions = flat.new_empty(size, length)
    work = dist.all_to_all_single(contributions.view(-1), padded, group=group, async_op=True)

    def finish() -> None:
        work.wait()
        used_on_current_stream(contributions)
        used_on_current_stream(padded)
        total = sum_in_rank_order(contributions)
        dist.all_gather(list(padded.split(length)), total, group=group)
        flat.copy_(padded[: len(flat)])

    return OrderedAllReduce(tensor, finish)


@dataclass(frozen=True)
class OrderedAllReduce:
    """One that is under way."""

    tensor: Tensor
    finish: Callable[[], None]

    def wait(self) -> Tensor:
        """Finish, and give the tensor, which then holds the sum."""
        self.finish()
        return self.tensor
