"""Tensors in a few numbers: what is equal where their bits are, and how large they are."""

import base64
import struct
from collections.abc import Sequence

import torch
from torch import Tensor

INTEGERS = {4: torch.int32, 2: torch.int16, 1: torch.uint8}
"""By the size of an element in bytes."""
MIX = 0x9E3779B97F4A7C15
"""Odd, without a pattern: its product's upper bits hang on all bits (Fibonacci hashing)."""
NONE = 0
"""In place of a digest where there is no tensor."""


def local(tensor: Tensor) -> Tensor:
    """This rank's part of it, without autograd; dense."""
    part = getattr(tensor, "_local_tensor", tensor).detach()  # of a DTensor
    if part.is_sparse:
        part = part.coalesce().values()
    return part


def digests(tensors: Sequence[Tensor | None]) -> list[int]:
    """32 bits for each, equal where the bits of the tensors are; `NONE` where there is none.

    They are sums of the tensors' words, which any device computes fast, in whatever order.
    """
    sums = _gather([None if tensor is None else _sum(local(tensor)) for tensor in tensors])
    return [NONE if total is None else _folded(int(total)) for total in sums]


def norms(tensors: Sequence[Tensor | None]) -> list[float]:
    """The L2 norm of each; NaN where one has values that are not finite, or there is none."""
    each = [None if tensor is None else _norm(local(tensor)) for tensor in tensors]
    return [float("nan") if norm is None else float(norm) for norm in _gather(each)]


def sums(tensors: Sequence[Tensor | None]) -> list[float]:
    """The sum of each one's elements; NaN as of `norms`. Others have the same norm more easily."""
    each = [None if tensor is None else _total(local(tensor)) for tensor in tensors]
    return [float("nan") if total is None else float(total) for total in _gather(each)]


def _folded(total: int) -> int:
    return (total * MIX >> 32 & 0xFFFFFFFF) or 1


def packed(code: str, numbers: Sequence[int | float]) -> str:
    """Numbers as text of a third of their length; `code` as in the module `struct`."""
    return base64.b64encode(struct.pack(f"<{len(numbers)}{code}", *numbers)).decode()


def packed_digests(numbers: Sequence[int]) -> str:
    """As `packed`."""
    return packed("I", numbers)


def packed_norms(numbers: Sequence[float]) -> str:
    """As `packed`; what is not finite is NaN."""
    largest = torch.finfo(torch.float32).max
    return packed("f", [n if abs(n) <= largest else float("nan") for n in numbers])


def _sum(tensor: Tensor) -> Tensor:
    if tensor.is_complex():
        tensor = torch.view_as_real(tensor)
    flat = tensor.contiguous().flatten()
    if flat.storage_offset() * flat.element_size() % 8:
        flat = flat.clone()  # words must be the same wherever the tensor lies
    whole = flat.numel() - flat.numel() % (8 // flat.element_size() or 1)
    total = flat[:whole].view(torch.int64).sum()
    if whole < flat.numel():
        total = total + flat[whole:].view(INTEGERS[flat.element_size()]).sum()
    return total


def _norm(tensor: Tensor) -> Tensor:
    if not (tensor.is_floating_point() or tensor.is_complex()) or tensor.element_size() == 1:
        tensor = tensor.float()
    norm: Tensor = torch.linalg.vector_norm(tensor)
    return norm.double()


def _total(tensor: Tensor) -> Tensor:
    if tensor.is_complex():
        tensor = torch.view_as_real(tensor)
    if tensor.element_size() == 1:
        tensor = tensor.float()
    return tensor.sum(dtype=torch.float32).double()


def _gather(values: Sequence[Tensor | None]) -> list[float | int | None]:
    """The numbers in them, with one transfer from each device."""
    found: list[float | int | None] = [None] * len(values)
    devices: dict[torch.device, list[int]] = {}
    for place, value in enumerate(values):
        if value is not None:
            devices.setdefault(value.device, []).append(place)
    for places in devices.values():
        stacked = torch.stack([v for i in places if (v := values[i]) is not None])
        for place, number in zip(places, stacked.tolist(), strict=True):
            found[place] = number
    return found
