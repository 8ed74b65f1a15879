"""How many messages a step takes, and that the lesson would see other buckets."""

from torch import nn

from lab.parallel import DistributedDataParallel
from tests.lessons.doing import failures
from tests.ranks import RankPool


def one_size(module: nn.Module, bucket_cap_mb: float | None) -> DistributedDataParallel:
    return DistributedDataParallel(module, bucket_cap_mb=0.5)


def test_theory_holds_on_3_ranks(ranks: RankPool) -> None:
    assert failures(ranks, 3, "buckets", DEPTH=24) == []


def test_buckets_of_another_size_are_seen(ranks: RankPool) -> None:
    failed = failures(ranks, 2, "buckets", DistributedDataParallel=one_size)
    others = ("0 MiB", "0.1 MiB", "1 MiB", "25 MiB", "default")
    assert failed == [f"messages, {size}" for size in others]
