"""Accumulation, and that the lesson would see averages that are wasted or missing."""

from collections.abc import Iterator
from contextlib import contextmanager

from lab.lessons.exercises.no_sync import WAYS
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
        "no_sync, all but the last: messages",
        "a warning says so",
        "no_sync, the last one, too: messages",
        "no_sync, the last one, too: difference to one process",
    ]


def test_ranks_that_are_not_averaged_are_seen(ranks: RankPool) -> None:
    failed = failures(ranks, 2, "no_sync", allreduce_hook=sums_only)
    assert failed == [f"{way.title}: difference to one process" for way in WAYS[:3]]
