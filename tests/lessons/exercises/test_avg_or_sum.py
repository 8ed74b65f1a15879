"""The three ways to a mean, and that the lesson would see one that is none."""

import torch.distributed as dist
from torch import Tensor

from tests.lessons.doing import failures
from tests.ranks import RankPool


def sum_alone(tensor: Tensor) -> Tensor:
    dist.all_reduce(tensor)
    return tensor


def test_theory_holds_on_3_ranks(ranks: RankPool) -> None:
    assert failures(ranks, 3, "avg_or_sum", SIZES=(4, 1024)) == []


def test_a_sum_is_no_mean(ranks: RankPool) -> None:
    assert failures(ranks, 2, "avg_or_sum", avg=sum_alone, SIZES=(4, 1024)) == [
        "AVG, difference to SUM / N"
    ]


def test_a_way_that_overflows_is_seen(ranks: RankPool) -> None:
    assert failures(ranks, 2, "avg_or_sum", divide_then_sum=sum_alone, SIZES=(4, 1024)) == [
        "divided before, difference at N = 2",
        "float16 of 40000, divided before is finite",
    ]
