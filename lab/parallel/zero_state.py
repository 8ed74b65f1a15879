"""ZeRO's optimiser states: from the ranks' pieces to whole parameters, and back."""

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from lab.parallel.layout import in_memory_order
from lab.parallel.zero_layout import Piece


def gather_states(
    states: Sequence[tuple[int, int, dict[str, Any]]],
    parameters: Sequence[Tensor],
    to: int,
    group: dist.ProcessGroup | None,
) -> dict[int, dict[str, Any]] | None:
    """The states of whole parameters, by number, on rank `to` of the group. A collective.

    Args:
        states: of this rank's pieces: number of the parameter, first element, state.
        parameters: by number.
        to: the others get None.
        group: the ranks.
    """
    size = dist.get_world_size(group)
    everybodys: list[Any] | None = [None] * size if dist.get_rank(group) == to else None
    dist.gather_object(list(states), everybodys, group=group, group_dst=to)
    if everybodys is None:
        return None
    parts: dict[int, list[tuple[int, dict[str, Any]]]] = {}
    for number, start, state in (row for rows in everybodys for row in rows):
        if state:
            parts.setdefault(number, []).append((start, state))
    joined = {}
    for number, rows in sorted(parts.items()):
        rows.sort(key=lambda row: row[0])
        joined[number] = _join_states([state for _, state in rows], parameters[number])
    return joined


def _join_states(parts: Sequence[dict[str, Any]], parameter: Tensor) -> dict[str, Any]:
    """The state of a whole parameter from those of its pieces: element-wise tensors end to end."""
    joined: dict[str, Any] = {}
    for name, value in parts[0].items():
        if isinstance(value, Tensor) and value.dim():
            whole = torch.empty_like(parameter, dtype=value.dtype)
            in_memory_order(whole, whole.stride()).copy_(torch.cat([part[name] for part in parts]))
            joined[name] = whole
        else:
            joined[name] = value
    return joined


def cut_state(state: dict[str, Any], piece: Piece) -> dict[str, Any]:
    """The piece's part of a whole state."""
    cut: dict[str, Any] = {}
    for name, value in state.items():
        # The count of steps is a scalar, and so is the average of a scalar parameter.
        elementwise = isinstance(value, Tensor) and value.shape == piece.parameter.shape
        if elementwise and name != "step":
            moved = value.to(piece.parameter.device)
            flat = in_memory_order(moved, piece.parameter.stride())
            cut[name] = flat[piece.start : piece.end].clone()
        else:
            cut[name] = value.clone() if isinstance(value, Tensor) else value
    return cut
