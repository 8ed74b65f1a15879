"""Collectives by hand, and that the lesson would see one that sends too much or adds up wrongly."""

from typing import Any

from torch import Tensor

from lab.parallel import algorithms, collectives
from lab.parallel.wire import Traffic, Wire
from tests.lessons.doing import failures
from tests.ranks import RankPool

_all_reduce = collectives.all_reduce


def always_naive(tensor: Tensor, algorithm: str) -> Traffic:
    del algorithm
    return _all_reduce(tensor, algorithm="naive")


def off_by_one(tensor: Tensor, algorithm: Any) -> Traffic:
    traffic = _all_reduce(tensor, algorithm=algorithm)
    tensor += 1
    return traffic


def half_a_ring(flat: Tensor, wire: Wire) -> None:
    """Reduce-scatter, twice, and no all-gather."""
    algorithms.ring_reduce_scatter(list(flat.chunk(wire.size)), wire)
    algorithms.ring_reduce_scatter(list(flat.clone().chunk(wire.size)), wire)


def test_theory_holds(ranks: RankPool) -> None:
    for size in (2, 3):
        assert failures(ranks, size, "collectives_by_hand") == []


def test_another_algorithm_is_seen(ranks: RankPool) -> None:
    failed = failures(ranks, 4, "collectives_by_hand", collectives__all_reduce=always_naive)
    assert failed == ["all_reduce, ring", "all_reduce, doubling"]


def test_a_wrong_sum_is_seen(ranks: RankPool) -> None:
    failed = failures(ranks, 2, "collectives_by_hand", collectives__all_reduce=off_by_one)
    assert failed == ["all_reduce, naive", "all_reduce, ring", "all_reduce, doubling"]


def test_an_unfinished_ring_is_seen(ranks: RankPool) -> None:
    failed = failures(ranks, 4, "collectives_by_hand", algorithms__ring_all_reduce=half_a_ring)
    assert "and after 2 (N-1): all" in failed
    assert "all_reduce, ring" in failed
