"""The lesson on replicas, and that it would see a method that does not keep them equal."""

from typing import Any

import torch.distributed as dist

from tests.lessons.doing import failures
from tests.ranks import RankPool


def nothing(*_: Any, **__: Any) -> None:
    """Neither broadcasts nor averages."""


def averaged_on_rank_0_alone(model: Any) -> None:
    for parameter in model.parameters():
        gradient = parameter.grad.clone()
        dist.all_reduce(gradient)
        if dist.get_rank() == 0:
            parameter.grad = gradient / dist.get_world_size()


def test_theory_holds(ranks: RankPool) -> None:
    assert failures(ranks, 2, "replicas") == []


def test_without_an_average_replicas_part(ranks: RankPool) -> None:
    for wrong in (nothing, averaged_on_rank_0_alone):
        failed = failures(ranks, 2, "replicas", all_reduce_grads_=wrong)
        assert "broadcast and all-reduce: parted at step" in failed


def test_without_a_broadcast_replicas_part(ranks: RankPool) -> None:
    failed = failures(ranks, 2, "replicas", dist__broadcast=nothing)
    assert "broadcast and all-reduce: parted at step" in failed
