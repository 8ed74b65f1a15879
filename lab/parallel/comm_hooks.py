"""Communication hooks: how one bucket becomes the mean over the ranks.

A hook gets (state, bucket), begins to communicate, and returns what `wait()` is called on once, in
the order of the buckets, at the latest at the end of backward. That gives the averaged gradients,
[elements of the bucket]. Torch's futures have such a `wait`, so torch's own hooks
(torch.distributed.algorithms.ddp_comm_hooks) work here as well, and these follow their names: the
state of each is the process group, None for all ranks, but for `hierarchical_hook`. Torch's
PowerSGD waits inside callbacks on gloo's threads: under torch's DDP as under this one it then needs
all gradients in one bucket, and the process aborts if that thread is the last to let go of the
destroyed group.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import torch
import torch.distributed as dist
from torch import Tensor

from lab.parallel.buckets import Bucket
from lab.parallel.hierarchical import HierarchicalAllReduce
from lab.parallel.ordered import start_all_reduce_ordered
from lab.parallel.streams import used_on_current_stream

Mean = Literal["sum_then_divide", "avg", "divide_then_sum"]


class Pending(Protocol):
    """A bucket that is under way."""

    def wait(self) -> Tensor:
        """Wait for its end (on CUDA: make the current stream wait) and give the mean."""
        ...


Hook = Callable[[Any, Bucket], Pending]


@dataclass(frozen=True)
class Work:
    """A collective under way, and what is to be done with its result."""

    work: Any
    finish: Callable[[], Tensor]

    def wait(self) -> Tensor:
        """Wait, then finish."""
        self.work.wait()
        return self.finish()


def allreduce_hook(group: dist.ProcessGroup | None, bucket: Bucket) -> Pending:
    """Sum in the gradients' own dtype, then divide. The default."""
    return mean_of(bucket, group, "sum_then_divide", dist.get_world_size(group))


def mean_of(bucket: Bucket, group: dist.ProcessGroup | None, how: Mean, divisor: int) -> Pending:
    """Average a bucket in place.

    Args:
        bucket: its buffer gets the mean.
        group: the ranks.
        how: sum_then_divide: as one process that accumulates and then divides. avg: the backend's
            own mean (gloo: the same; nccl: scales on the way). divide_then_sum: torch's DDP; cannot
            overflow where the mean does not, as a sum of float16 can (40000 + 40000).
        divisor: what to divide by; other than the world size where some ranks have no more input.
    """
    buffer = bucket.buffer()
    if how == "divide_then_sum":
        buffer.div_(divisor)
    own_mean = how == "avg" and divisor == dist.get_world_size(group)
    operation = dist.ReduceOp.AVG if own_mean else dist.ReduceOp.SUM
    work = dist.all_reduce(buffer, op=operation, group=group, async_op=True)
    divide = not own_mean and how != "divide_then_sum"
    return Work(work, lambda: buffer.div_(divisor) if divide else buffer)


def ordered_hook(group: dist.ProcessGroup | None, bucket: Bucket) -> Pending:
    """Sum in rank order, then divide: bitwise what one process accumulates, at any N.

    The last buckets' all-gather, half of what they send, does not overlap with backward.
    """
    pending = start_all_reduce_ordered(bucket.buffer(), group)
    return Work(pending, lambda: bucket.buffer().div_(dist.get_world_size(group)))


def hierarchical_hook(reducer: HierarchicalAllReduce, bucket: Bucket) -> Pending:
    """Sum inside nodes, between nodes, inside nodes, where that pays; then divide."""
    pending = reducer.start(bucket.buffer())
    return Work(pending, lambda: bucket.buffer().div_(dist.get_world_size(reducer.group)))


def fp16_compress_hook(group: dist.ProcessGroup | None, bucket: Bucket) -> Pending:
    """Divide and sum in float16: half the bytes, 11 bits, and from 65504 on infinity."""
    return _compressed(group, bucket, torch.float16)


def bf16_compress_hook(group: dist.ProcessGroup | None, bucket: Bucket) -> Pending:
    """Divide and sum in bfloat16: half the bytes, 8 bits, and float32's range."""
    return _compressed(group, bucket, torch.bfloat16)


def _compressed(group: dist.ProcessGroup | None, bucket: Bucket, dtype: torch.dtype) -> Pending:
    small = bucket.buffer().to(dtype).div_(dist.get_world_size(group))
    work = dist.all_reduce(small, group=group, async_op=True)

    def finish() -> Tensor:
        used_on_current_stream(small)
        return bucket.buffer().copy_(small)

    return Work(work, finish)
