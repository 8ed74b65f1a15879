"""The lesson on barriers, and that it would see one that does not wait, or that carries data."""

from typing import Any

import torch.distributed as dist

from tests.lessons.doing import failures
from tests.ranks import RankPool

_barrier = dist.barrier


def not_waiting() -> None:
    """Waits for nobody."""


def test_theory_holds(ranks: RankPool) -> None:
    assert failures(ranks, 2, "barrier") == []


def test_a_barrier_that_does_not_wait_is_seen(ranks: RankPool) -> None:
    failed = failures(ranks, 2, "barrier", dist__barrier=not_waiting)
    assert any(what.startswith("barrier: shortest stay") for what in failed)


def test_replicas_that_are_not_averaged_are_seen(ranks: RankPool) -> None:
    failed = failures(ranks, 2, "barrier", all_reduce_grads_=nothing)
    assert failed == ["ranks with all-reduce are equal"]


def nothing(_: Any) -> None:
    """Averages nothing."""
