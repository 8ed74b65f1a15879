"""Digests are equal where bits are, wherever they lie."""

import pytest
import torch
from torch import Tensor

from lab.rank.audit.recorder import ALLOWANCE, SHARE, Sampling
from lab.rank.audit.tensors import NONE, digests, norms


def _digest(tensor: Tensor) -> int:
    return digests([tensor])[0]


def test_equal_bits_have_equal_digests_wherever_they_lie() -> None:
    tensor = torch.randn(7, 5)
    moved = torch.cat([torch.zeros(1), tensor.flatten()])[1:].view(7, 5)  # at an odd offset
    assert _digest(moved) == _digest(tensor)
    assert _digest(tensor.t().contiguous().t()) == _digest(tensor)


def test_each_dtype_and_shape_has_a_digest_of_its_own_bits() -> None:
    dtypes = (torch.float64, torch.float32, torch.bfloat16, torch.int64, torch.int8, torch.bool)
    for dtype in (*dtypes, torch.complex64):
        for shape in ((), (0,), (1,), (3,), (8,), (3, 5)):
            ones = torch.ones(shape, dtype=dtype)
            assert _digest(ones) == _digest(ones.clone())
            if ones.numel():
                assert _digest(ones) != _digest(torch.zeros(shape, dtype=dtype))


def test_one_bit_makes_another_digest() -> None:
    tensor = torch.randn(1001)
    other = tensor.clone()
    other.view(torch.int32)[1000] ^= 1
    assert _digest(other) != _digest(tensor)


def test_what_is_not_there_has_no_digest() -> None:
    assert digests([None, torch.zeros(2)])[0] == NONE
    assert digests([torch.zeros(2)]) != [NONE]
    assert norms([torch.tensor([3.0, 4.0])]) == [5.0]


@pytest.mark.parametrize("beside", [False, True])
def test_steps_are_looked_at_more_seldom_the_more_it_costs(beside: bool) -> None:
    """Also where it is threads of the audit's own that compute."""
    now = work = 0.0
    sampling = Sampling(clock=lambda: now)
    looked = []
    for step in range(1, 2001):
        now += 0.01
        if sampling.due(step):
            looked.append(step)
            with sampling.beside if beside else sampling:
                now += 0.01
                work += 0.01
    assert looked[:10] == list(range(1, 11))  # a short run is looked at step by step
    assert work <= ALLOWANCE + SHARE * now + 0.02
    intervals = {b - a for a, b in zip(looked[-10:], looked[-9:], strict=False)}
    assert min(intervals) > 8
    assert sampling.spent == (0.0 if beside else pytest.approx(work))
    assert sampling.due(1 << 20)  # all ranks look at a common step, whatever their intervals
