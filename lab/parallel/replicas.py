"""Replicas: every rank has the same model before the first step.

First all ranks compare what their models are made of. Only then are values sent: a broadcast among
ranks with different models would mix up weights of equal shape without a word, or wait for ever.
"""

import hashlib
from collections.abc import Iterable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

MESSAGE_BYTES = 250 * 1024 * 1024
"""Tensors are joined to messages of about this size, as torch's DDP does."""


def describe(module: nn.Module, options: dict[str, Any] | None = None) -> list[tuple[str, str]]:
    """What must be equal on all ranks, as (what, its description), in order of registration.

    Strides count as well: ranks with other memory layouts would add up other elements.
    """
    rows = [(f"option {name}", repr(value)) for name, value in (options or {}).items()]
    for name, parameter in module.named_parameters():
        rows.append((f"parameter {name}", layout_of(parameter)))
    rows += [(f"buffer {name}", layout_of(buffer)) for name, buffer in module.named_buffers()]
    return rows


def layout_of(tensor: Tensor) -> str:
    """A tensor in words: dtype, shape, kind of device, strides if unusual, frozen parameters."""
    kind = str(tensor.dtype).removeprefix("torch.")
    text = f"{kind} {list(tensor.shape)} on {tensor.device.type}"
    if not tensor.is_contiguous():
        text += f" with strides {tensor.stride()}"
    if isinstance(tensor, nn.Parameter) and not tensor.requires_grad:
        text += ", needs no gradient"
    return text


def check_replicas(
    description: Sequence[tuple[str, str]], group: dist.ProcessGroup | None = None
) -> None:
    """Make sure that all ranks have the same description. A collective of a few bytes.

    Raises:
        ValueError: not so. On every rank, with the first rank that differs from rank 0 and the
            first thing in which it does. Or this rank is not in the group.
    """
    world_size = dist.get_world_size(group)
    if world_size < 1:
        raise ValueError("this rank is not in process_group: only those that are wrap the model")
    digests: list[Any] = [None] * world_size
    digest = hashlib.sha256(repr(list(description)).encode()).hexdigest()
    dist.all_gather_object(digests, digest, group=group)
    if len(set(digests)) == 1:
        return
    everybodys: list[Any] = [None] * world_size
    dist.all_gather_object(everybodys, list(description), group=group)
    expected = everybodys[0]
    guilty = next(rank for rank in range(world_size) if everybodys[rank] != expected)
    found = everybodys[guilty]
    place = next(
        (
            place
            for place, pair in enumerate(zip(expected, found, strict=False))
            if len(set(pair)) > 1
        ),
        min(len(expected), len(found)),
    )

    def at(rows: Sequence[tuple[str, str]]) -> str:
        return ": ".join(rows[place]) if place < len(rows) else "no more"

    raise ValueError(
        f"the model is not the same on all ranks: rank {guilty} has {at(found)}; "
        f"rank 0 has {at(expected)}"
    )


def broadcast_(
    tensors: Iterable[Tensor], source: int = 0, group: dist.ProcessGroup | None = None
) -> None:
    """Overwrite every rank's tensors with those of rank `source` of the group.

    They travel as bytes, many in one message, so any dtypes will do and may be mixed.

    Args:
        tensors: the same shapes, dtypes and order on every rank, all on one device.
        source: rank within the group.
        group: default all ranks.
    """
    message: list[Tensor] = []
    size = 0
    for tensor in tensors:
        # Without autograd's version counter: a forward may come between another and its backward.
        message.append(tensor.data)
        size += tensor.nbytes
        if size >= MESSAGE_BYTES:
            _broadcast_one_message(message, source, group)
            message, size = [], 0
    if message:
        _broadcast_one_message(message, source, group)


def _broadcast_one_message(
    tensors: Sequence[Tensor], source: int, group: dist.ProcessGroup | None
) -> None:
    flats = [tensor.contiguous().reshape(-1).view(torch.uint8) for tensor in tensors]
    message = torch.cat(flats)
    if not message.numel():
        return
    dist.broadcast(message, group=group, group_src=source)
    if dist.get_rank(group) == source:
        return  # also spares autograd's version counters, which a copy would raise
    for tensor, part in zip(tensors, message.split([len(flat) for flat in flats]), strict=True):
        # A part may begin at any byte, and a view of a wider dtype may not: hence the clone.
        tensor.copy_(part.clone().view(tensor.dtype).view(tensor.shape))
