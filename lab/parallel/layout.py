"""How parameters lie in a flat tensor that N ranks share: the layout of FSDP and of ZeRO.

One after another, each at an aligned place, in N equal parts, which may cut a parameter anywhere.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

ALIGNMENT = 64
"""Bytes. Each parameter begins where a tensor of its own might: on other addresses kernels may be
slow, or compute other bits, so that training would part from one process in the first forward."""


@dataclass(frozen=True)
class Layout:
    """Of tensors of one dtype. All numbers count elements."""

    counts: Sequence[int]
    """Elements of each tensor."""
    starts: Sequence[int]
    """Where each begins."""
    gaps: Sequence[slice]
    """What belongs to none: before each, and at the end. Zeros."""
    length: int
    """Of a rank's part: ceil(end of the last / N), at least one."""

    def part_of(self, rank: int, number: int) -> tuple[int, int, int]:
        """What a rank's part has of a tensor.

        Returns:
            First and end within the tensor, equal where it has nothing, and the place of the first
            within the part.
        """
        low = rank * self.length
        start, count = self.starts[number], self.counts[number]
        first = min(max(low - start, 0), count)
        end = min(max(low + self.length - start, 0), count)
        return first, end, start + first - low if first < end else 0


def lay_out(tensors: Sequence[Tensor], size: int) -> Layout:
    """Places for tensors of one dtype in a flat one of [size x length]."""
    grain = max(1, ALIGNMENT // tensors[0].element_size())
    counts = [tensor.numel() for tensor in tensors]
    starts, gaps, end = [], [], 0
    for count in counts:
        starts.append(-(-end // grain) * grain)
        gaps.append(slice(end, starts[-1]))
        end = starts[-1] + count
    length = max(1, -(-end // size))
    return Layout(counts, starts, [*gaps, slice(end, size * length)], length)


def dense_stride(tensor: Tensor) -> tuple[int, ...]:
    """Of dense memory in the same order: a part of a larger tensor has gaps."""
    return torch.empty_like(tensor, device="meta").stride()


def in_memory_order(tensor: Tensor, stride: tuple[int, ...]) -> Tensor:
    """The elements as [numel] in the order of memory that these strides give. A view if it can."""
    tensor = tensor.detach()
    if tensor.stride() != stride:
        tensor = tensor.new_empty_strided(tensor.shape, stride).copy_(tensor)
    return tensor.as_strided((tensor.numel(),), (1,))
