"""Accumulation, and that the lesson would see averages that are wasted or missing."""

from collections.abc import Iterator
from contextlib import contextmanager

from lab.parallel import DistributedDataParallel
from lab.parallel.buckets import Bucket
from lab.parallel.comm_hooks import Pending, mean_of
from tests.lessons.doing import failures
from tests.ranks import RankPool


class AlwaysSyncs(DistributedDataParallel):
    @contextmanager
    def no_sync(self) -> Iterator[None]:
        yield


def sums_only(group: None, bucket: Bucket) -> Pending:
    """Forgets the division."""
    return mean_of(bucket, group, "sum_then_divide", 1)


def test_theory_holds_on_3_ranks(ranks: RankPool) -> None:
    assert failures(ranks, 3, "no_sync") == []


def test_a_no_sync_that_does_nothing_is_seen(ranks: RankPool) -> None:
    assert failures(ranks, 2, "no_sync", DistributedDataParallel=AlwaysSyncs) == [
        "messages with no_sync for all but the last",
        "a warning says so",
        "messages with the last one inside, too",
        "and the ranks' gradients part by",
    ]


def test_ranks_that_are_not_averaged_are_seen(ranks: RankPool) -> None:
    failed = failures(ranks, 2, "no_sync", allreduce_hook=sums_only)
    assert failed == [
        "difference to one process, without no_sync",
        "difference to one process, with no_sync",
    ]
