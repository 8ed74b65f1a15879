"""ZeRO, stage 2: after backward each rank has the averaged gradients of its own parts only.

A bucket's gradients are reduce-scattered as soon as they are complete: each rank gets all ranks'
gradients of its N-th (all-to-all) and adds them in rank order, so that the result is bitwise that
of one process. Then the bucket's memory is given back, and the parameters' `grad` are None. What a
rank holds of gradients is ceil(P / N), and during backward two buckets on their way, each with what
comes in, and the gradients of a third. So buckets are to be small: see `cap_mb`.
"""

import math
from collections import deque
from collections.abc import Callable, Sequence

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.utils import get_total_norm

from lab.parallel.buckets import BUCKETS, MEBIBYTE, Bucket
from lab.parallel.comm_hooks import Pending
from lab.parallel.ordered import sum_in_rank_order
from lab.parallel.reducer import Reducer
from lab.parallel.streams import used_on_current_stream
from lab.parallel.zero_layout import FlatParameters, Piece

IN_FLIGHT = 2
"""Buckets that may be whole at once: one on the way when the next is packed."""

SMALLEST_MB = 1 / 16
"""Of a bucket: below, there is nothing to save."""


def cap_mb(parameters: Sequence[nn.Parameter], most: float) -> float:
    """MiB for a bucket: a 16th of the gradients, for a few of them are whole at once.

    Args:
        parameters: of the model.
        most: the model's own cap.
    """
    total = sum(parameter.nbytes for parameter in parameters) / MEBIBYTE
    return min(most, max(total / BUCKETS, SMALLEST_MB))


class ShardedBucket(Bucket):
    """A bucket that exists while it is sent. What is left of it is this rank's part of the mean."""

    def __init__(
        self,
        index: int,
        numbers: Sequence[int],
        flat: FlatParameters,
        *,
        last: bool,
        make_room: Callable[[], None],
    ) -> None:
        """Lay the gradients out as the flat parameters are.

        Args:
            index: place in the order in which buckets are sent.
            numbers: of the flat tensor's parameters, as the reducer counts them.
            flat: whose gradients these are.
            last: whether it is the last to be sent.
            make_room: called before it takes memory.
        """
        parameters = [parameter for _, parameter in flat.numbered]
        members = list(zip(numbers, parameters, strict=True))
        super().__init__(index, members, last, flat.starts, len(flat.flat))
        self.flat = flat
        self.mine: Tensor | None = None
        """[length of a part]: the sum of the means since `clear`; None before the first."""
        self.used: set[int] = set()
        """Numbers, as the optimiser counts them, of parameters with gradients since `clear`."""
        self._make_room = make_room
        self._bytes = self._buffer.nbytes
        self.release()

    def pack(self) -> None:
        """Take the gradients away from the parameters, into memory that is made for them."""
        self._make_room()
        self._buffer.untyped_storage().resize_(self._bytes)
        for gap in self.flat.gaps:
            self._buffer[gap].zero_()
        super().pack()
        for parameter in self._parameters:
            parameter.grad = None

    def release(self) -> None:
        """Give the memory of the whole back."""
        self._buffer.untyped_storage().resize_(0)

    def set_buffer(self, buffer: Tensor) -> None:
        """Add this rank's part of a mean, [length of a part]."""
        self.mine = buffer if self.mine is None else self.mine + buffer

    def unpack(self, used: Sequence[bool] | None = None) -> None:
        """Note whose gradients count. Parameters get none.

        Args:
            used: by the reducer's number; None: all of them.
        """
        for number, (own_number, _) in zip(self.numbers, self.flat.numbered, strict=True):
            if used is None or used[number]:
                self.used.add(own_number)

    def clear(self) -> None:
        """Forget the gradients."""
        self.mine = None
        self.used.clear()

    def gradient_of(self, piece: Piece) -> Tensor | None:
        """This rank's gradient of a piece, [its elements], or None where no rank used it."""
        if self.mine is None or piece.number not in self.used:
            return None
        return self.mine[piece.place : piece.place + piece.end - piece.start]


class GradientSharding:
    """Makes a DistributedDataParallel's reducer leave each rank its part of the gradients."""

    def __init__(self, reducer: Reducer, flats: Sequence[FlatParameters]) -> None:
        """Replace the reducer's buckets, whose memory that frees, and its way to average.

        Raises:
            ValueError: the flat tensors hold other parameters than the reducer.
            RuntimeError: the model has a communication hook.
        """
        if reducer.comm_hook is not None:
            raise RuntimeError("stage 2 averages by itself: register no communication hook")
        numbers = {parameter: number for number, parameter in enumerate(reducer.parameters)}
        given = [parameter for flat in flats for _, parameter in flat.numbered]
        missing = [reducer.names[n] for p, n in numbers.items() if p not in set(given)]
        if missing:
            raise ValueError(
                f"stage 2 takes all trained parameters of the model, and {missing[0]} is not given"
            )
        if foreign := [p for p in given if p not in numbers]:
            raise ValueError(
                f"stage 2 takes the model's parameters only: one of {list(foreign[0].shape)} is not"
            )
        rows = [([numbers[p] for _, p in flat.numbered], flat) for flat in flats]
        rows.sort(key=lambda row: -min(row[0]))
        self._reducer = reducer
        self._under_way: deque[Part] = deque()
        self.buckets = [
            ShardedBucket(index, row, flat, last=index == len(rows) - 1, make_room=self._make_room)
            for index, (row, flat) in enumerate(rows)
        ]
        reducer.set_buckets(self.buckets)
        reducer.comm_hook = (None, self._reduce_scatter)

    def _make_room(self) -> None:
        while len(self._under_way) >= IN_FLIGHT:
            self._under_way.popleft().wait()

    def _reduce_scatter(self, _: None, bucket: Bucket) -> Pending:
        assert isinstance(bucket, ShardedBucket)
        part = Part(bucket, self._reducer)
        self._under_way.append(part)
        if bucket.is_last():
            self._under_way.clear()  # the reducer waits for these
        return part

    def gradients(self) -> list[tuple[Piece, Tensor | None]]:
        """Of this rank's pieces, [elements of the piece], None where no rank used the parameter.

        Raises:
            RuntimeError: there are some that were never averaged.
        """
        for name, parameter in zip(self._reducer.names, self._reducer.parameters, strict=True):
            if parameter.grad is not None:
                raise RuntimeError(
                    f"the gradient of {name} was never averaged: leave no_sync() for the last "
                    "forward and backward before a step"
                )
        return [
            (piece, bucket.gradient_of(piece))
            for bucket in self.buckets
            for piece in bucket.flat.pieces
        ]

    def clip_(self, max_norm: float, norm_type: float) -> Tensor:
        """See `ZeroRedundancyOptimizer.clip_grad_norm_`. Padding is zeros and counts nothing."""
        gradients = [gradient for _, gradient in self.gradients() if gradient is not None]
        first = self.buckets[0].flat
        # One dtype on the wire, whatever this rank has pieces of, if any.
        norm = get_total_norm(gradients, norm_type).to(first.flat.device, torch.float64)
        if norm_type == math.inf:
            dist.all_reduce(norm, op=dist.ReduceOp.MAX, group=first.group)
        else:
            norm = norm**norm_type
            dist.all_reduce(norm, group=first.group)
            norm = norm ** (1 / norm_type)
        factor = (max_norm / (norm + 1e-6)).clamp(max=1.0)  # as torch's
        for gradient in gradients:
            gradient.mul_(factor)
        return norm

    def bytes(self) -> int:
        """Of gradients on this rank: its parts, and what no_sync has accumulated."""
        held = [bucket.mine for bucket in self.buckets]
        held += [parameter.grad for parameter in self._reducer.parameters]
        return sum(tensor.nbytes for tensor in held if tensor is not None)

    def gather(self) -> dict[int, Tensor]:
        """All gradients, whole, by the optimiser's numbers. A collective, for tests and proofs."""
        found = {}
        for bucket in self.buckets:
            if bucket.mine is None:
                continue
            whole = torch.empty_like(bucket.flat.flat)
            parts = list(whole.split(bucket.flat.length))
            dist.all_gather(parts, bucket.mine, group=bucket.flat.group)
            for (number, parameter), start in zip(
                bucket.flat.numbered, bucket.flat.starts, strict=True
            ):
                if number in bucket.used:
                    found[number] = whole.as_strided(parameter.shape, parameter.stride(), start)
        return found


class Part:
    """This rank's part of one bucket's mean, under way."""

    def __init__(self, bucket: ShardedBucket, reducer: Reducer) -> None:
        flat = bucket.flat
        buffer = bucket.buffer()
        self._bucket, self._divisor = bucket, reducer.divisor
        self._result: Tensor | None = None
        self._divide_last = reducer.mean != "divide_then_sum"
        if not self._divide_last:
            buffer.div_(self._divisor)
        self._theirs = buffer.new_empty(dist.get_world_size(flat.group), flat.length)
        self._work = dist.all_to_all_single(
            self._theirs.view(-1), buffer, group=flat.group, async_op=True
        )

    def wait(self) -> Tensor:
        """Finish: [length of a part]. Also when it was called before."""
        if self._result is None:
            self._work.wait()
            used_on_current_stream(self._theirs)
            used_on_current_stream(self._bucket.buffer())
            total = sum_in_rank_order(self._theirs)
            self._result = total.div_(self._divisor) if self._divide_last else total
            self._bucket.release()
            del self._theirs, self._work
        return self._result
