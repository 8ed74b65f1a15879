"""Samples in 32 bits each: equal where their contents are, on every rank and device."""

from collections.abc import Sequence
from functools import cache

import torch
from torch import Tensor

COLUMNS = 256
"""Elements of a sample that are looked at, spread evenly over all of them."""
INTEGERS = {8: torch.int64, 4: torch.int32, 2: torch.int16, 1: torch.uint8}
"""By the size of an element in bytes."""


@torch.no_grad()
def row_digests(tensors: Sequence[Tensor]) -> list[int]:
    """One for each row of tensors [rows, ...] that belong together."""
    total: Tensor | None = None
    for number, tensor in enumerate(tensors):
        rows = tensor.detach().reshape(tensor.shape[0], -1)
        if rows.is_complex():
            rows = torch.view_as_real(rows).flatten(1)
        step = -(-rows.shape[1] // COLUMNS) or 1
        words = rows[:, ::step].contiguous().view(INTEGERS[rows.element_size()]).to(torch.int64)
        sums = (words * _weights(words.shape[1], number).to(words.device)).sum(1)
        total = sums if total is None else total + sums
    if total is None:
        return []
    return [(value ^ value >> 32) & 0xFFFFFFFF for value in total.tolist()]


@cache
def _weights(columns: int, number: int) -> Tensor:
    """Odd numbers without a pattern, and without drawing from anybody's random numbers."""
    state, values = number + 1, []
    for _ in range(columns):
        state = (state * 6364136223846793005 + 1442695040888963407) & (1 << 64) - 1
        word = (state ^ state >> 29) | 1
        values.append(word - (1 << 64) if word >> 63 else word)
    return torch.tensor(values, dtype=torch.int64)
