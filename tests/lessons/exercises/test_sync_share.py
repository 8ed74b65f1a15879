"""The share of synchronisation, and that the lesson would see bytes that are too few or many."""

from collections.abc import Callable

from torch import nn

from lab.lessons.exercises.sync_share import step_of
from lab.training.world import World
from tests.lessons.doing import failures
from tests.ranks import RankPool


def unsynchronised(model: nn.Module) -> nn.Module:
    """No DDP at all."""
    return model


def test_theory_holds(ranks: RankPool) -> None:
    assert failures(ranks, 2, "sync_share") == []


def test_a_model_that_nobody_averages_is_seen(ranks: RankPool) -> None:
    failed = failures(ranks, 2, "sync_share", DistributedDataParallel=unsynchronised)
    assert failed == [f"batch {batch}: bytes received" for batch in (1, 16, 256)]


def on_one_sample(model: nn.Module, batch: int, world: World) -> Callable[[], None]:
    """Whatever the batch was to be."""
    del batch
    return step_of(model, 1, world)


def test_a_step_on_other_samples_is_seen(ranks: RankPool) -> None:
    failed = failures(ranks, 2, "sync_share", BATCHES=(1, 16), step_of=on_one_sample)
    assert "batch 16: operations" in failed
