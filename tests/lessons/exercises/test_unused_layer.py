"""A skipped layer, and that the lesson would see a guard that sleeps."""

from typing import Any

from torch import nn

from lab.parallel import DistributedDataParallel
from tests.lessons.doing import failures
from tests.ranks import RankPool


def no_guard(module: nn.Module, **options: Any) -> DistributedDataParallel:
    return DistributedDataParallel(module, **{**options, "hang_guard": False})


def always_looks(module: nn.Module, **options: Any) -> DistributedDataParallel:
    return DistributedDataParallel(module, **{**options, "find_unused_parameters": True})


def test_theory_holds_on_3_ranks(ranks: RankPool) -> None:
    assert failures(ranks, 3, "unused_layer") == []


def test_a_guard_that_names_nobody_is_seen(ranks: RankPool) -> None:
    failed = failures(ranks, 2, "unused_layer", DistributedDataParallel=no_guard)
    assert failed == ["the guilty rank's error names rank and layer"]


def test_where_nobody_hangs_it_is_seen(ranks: RankPool) -> None:
    failed = failures(ranks, 2, "unused_layer", DistributedDataParallel=always_looks)
    assert failed == [
        "ranks that fail",
        "after seconds",
        "the guilty rank's error names rank and layer",
    ]
