"""The lesson on SUM, and that it would see a mean that is none."""

from typing import Any

import torch.distributed as dist

from tests.lessons.doing import failures
from tests.ranks import RankPool

_all_reduce = dist.all_reduce


def averaging(tensor: Any, op: Any = dist.ReduceOp.SUM, group: Any = None) -> None:
    """Divides though nobody asked for it."""
    _all_reduce(tensor, op, group)
    tensor /= dist.get_world_size(group)


def rank_0s(tensor: Any, group: Any = None) -> None:
    """The gradient of one rank, in the place of the sum."""
    dist.broadcast(tensor, group=group, group_src=0)


def test_theory_holds(ranks: RankPool) -> None:
    assert failures(ranks, 4, "sum_without_division") == []


def test_a_division_that_was_made_is_seen(ranks: RankPool) -> None:
    failed = failures(ranks, 2, "sum_without_division", dist__all_reduce=averaging)
    assert "N = 2: mean, and one rank alone, differ by" in failed


def test_gradients_of_one_rank_are_seen(ranks: RankPool) -> None:
    failed = failures(ranks, 2, "sum_without_division", dist__all_reduce=rank_0s)
    assert "N = 2: mean, and one rank alone, differ by" in failed
