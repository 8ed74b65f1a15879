"""The part of a tensor that one rank holds, as torch.distributed.checkpoint saves and loads it.

A rank of FSDP or ZeRO holds a range of a tensor's elements, in the order of memory. A checkpoint
wants boxes, so that it has the true shapes and fits any other way to cut:

    [3, 4], elements 2 to 10       . . x x       a box of 1 x 2 at (0, 2)
                                   x x x x       a box of 1 x 4 at (1, 0)
                                   x x . .       a box of 1 x 2 at (2, 0)

The three methods with underscores are the protocol by which DTensor, too, is saved
(torch/distributed/_checkpointable.py).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import torch
from torch import Tensor
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    MetadataIndex,
    TensorProperties,
)
from torch.distributed.checkpoint.planner import TensorWriteData, WriteItem, WriteItemType

from lab.parallel.layout import dense_stride, in_memory_order


@dataclass(frozen=True)
class Box:
    """A box of a tensor's elements. Both have one number for each dimension."""

    offsets: tuple[int, ...]
    sizes: tuple[int, ...]


def boxes(shape: Sequence[int], start: int, end: int) -> list[Box]:
    """Cut the elements [start, end) of a tensor into boxes, in their order.

    Args:
        shape: of the tensor, whose elements are counted row by row.
        start: the first of them.
        end: behind the last.

    Returns:
        At most 2 x dimensions - 1; none for an empty range.
    """
    if start >= end:
        return []
    if not shape:
        return [Box((), ())]
    row = prod(shape[1:])
    first, last = -(-start // row), end // row
    if first > last:  # all within one row
        return _in_row(shape, last, start, end)
    rows = [Box((first, *(0 for _ in shape[1:])), (last - first, *shape[1:]))]
    return [
        *_in_row(shape, first - 1, start, first * row),
        *(rows if first < last else []),
        *_in_row(shape, last, last * row, end),
    ]


def _in_row(shape: Sequence[int], index: int, start: int, end: int) -> list[Box]:
    begin = index * prod(shape[1:])
    inner = boxes(shape[1:], start - begin, end - begin)
    return [Box((index, *box.offsets), (1, *box.sizes)) for box in inner]


@dataclass(frozen=True)
class Chunks:
    """Boxes of one tensor, with the memory that holds them: saving reads it, loading writes it."""

    shape: torch.Size
    """Of the whole tensor."""
    dtype: torch.dtype
    parts: dict[tuple[int, ...], Tensor]
    """By offsets, each a view in its box's shape."""
    whole: bool = False
    """Every rank has all of it."""

    @classmethod
    def of_whole(cls, tensor: Tensor, *, everywhere: bool = True) -> "Chunks":
        """All of a tensor.

        Args:
            tensor: any.
            everywhere: each rank has it, with equal values.
        """
        tensor = tensor.detach()
        return cls(tensor.shape, tensor.dtype, {(0,) * tensor.dim(): tensor}, everywhere)

    @classmethod
    def of_range(
        cls, shape: torch.Size, stride: Sequence[int], start: int, values: Tensor
    ) -> "Chunks":
        """A range of elements.

        Args:
            shape: of the whole tensor.
            stride: of the whole tensor, dense: says in which order elements are counted.
            start: the first element of the range.
            values: [elements of the range].
        """
        values = values.detach()
        if not shape.numel():
            return cls.of_whole(values.view(shape), everywhere=False)
        order = sorted(range(len(shape)), key=lambda dim: (-stride[dim], dim))
        back = [order.index(dim) for dim in range(len(shape))]
        parts, done = {}, 0
        for box in boxes([shape[dim] for dim in order], start, start + len(values)):
            count = prod(box.sizes)
            view = values[done : done + count].view(box.sizes).permute(back)
            parts[tuple(box.offsets[dim] for dim in back)] = view
            done += count
        return cls(shape, values.dtype, parts)

    @classmethod
    def of_dtensor(cls, tensor: Any) -> "Chunks":
        """This rank's part of a DTensor, as torch's fully_shard makes them."""
        local = tensor.to_local().detach()
        (chunk,) = tensor.__create_chunk_list__()
        parts = {tuple(chunk.offsets): local} if local.numel() or not tensor.numel() else {}
        return cls(tensor.shape, tensor.dtype, parts)

    def cut(self, start: int, end: int) -> "Chunks":
        """The elements [start, end) of a whole one, in the order of memory."""
        (tensor,) = self.parts.values()
        stride = dense_stride(tensor)
        flat = in_memory_order(tensor, stride)
        return Chunks.of_range(self.shape, stride, start, flat[start:end])

    def copied(self, before: "Chunks | None" = None) -> "Chunks":
        """With memory of its own, on the CPU: what is saved while training goes on.

        Args:
            before: an earlier copy, whose memory is used again: new memory takes several times as
                long as the copying.
        """
        memory = {} if before is None or before.dtype != self.dtype else before.parts
        parts = {}
        for at, part in self.parts.items():
            known = memory.get(at)
            if known is not None and known.shape == part.shape:
                parts[at] = known.copy_(part)
            else:
                parts[at] = part.to("cpu", copy=True)
        return Chunks(self.shape, self.dtype, parts, self.whole)

    # How torch.distributed.checkpoint sees it.

    def size(self) -> torch.Size:
        """Of the whole tensor."""
        return self.shape

    def __create_write_items__(self, name: str, _: object) -> list[WriteItem]:
        properties = TensorProperties(dtype=self.dtype)
        return [
            WriteItem(
                MetadataIndex(name, chunk.offsets),
                WriteItemType.SHARD,
                tensor_data=TensorWriteData(chunk, properties, self.shape),
            )
            for chunk in self.__create_chunk_list__()
        ]

    def __create_chunk_list__(self) -> list[ChunkStorageMetadata]:
        return [ChunkStorageMetadata(torch.Size(at), part.shape) for at, part in self.parts.items()]

    def __get_tensor_shard__(self, index: MetadataIndex) -> Tensor:
        assert index.offset is not None
        return self.parts[tuple(index.offset)]


def shared_out(chunks: dict[str, Chunks], rank: int, size: int) -> dict[str, Chunks]:
    """What one rank saves: whole tensors are dealt out, so that they are saved once, by all ranks.

    They are thought of as lying end to end; each rank takes one N-th of the bytes.

    Args:
        chunks: by name; the whole ones are the same on all ranks.
        rank: this one.
        size: how many ranks, N.
    """
    whole = {name: value for name, value in chunks.items() if value.whole}
    total = sum(value.shape.numel() * value.dtype.itemsize for value in whole.values())
    low, high = total * rank // size, total * (rank + 1) // size
    mine = {name: value for name, value in chunks.items() if not value.whole}
    begin = 0
    for name, value in whole.items():
        item = value.dtype.itemsize
        count = value.shape.numel()
        # An element belongs to where its first byte lies.
        start = min(max(-(-(low - begin) // item), 0), count)
        end = min(max(-(-(high - begin) // item), 0), count)
        if (start, end) == (0, count) and (count or rank == 0):
            mine[name] = value
        elif start < end:
            mine[name] = value.cut(start, end)
        begin += count * item
    return mine
