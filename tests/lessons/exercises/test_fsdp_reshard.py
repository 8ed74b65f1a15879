"""What resharding frees, and that the lesson would see a strategy that does something else."""

from lab.parallel import ShardingStrategy
from tests.lessons.doing import failures
from tests.ranks import RankPool

ALWAYS = dict.fromkeys(("reshard", "no reshard"), ShardingStrategy.FULL_SHARD)
NEVER = dict.fromkeys(("reshard", "no reshard"), ShardingStrategy.SHARD_GRAD_OP)


def test_theory_holds_on_3_ranks(ranks: RankPool) -> None:
    assert failures(ranks, 3, "fsdp_reshard") == []


def test_a_strategy_that_is_another_is_seen(ranks: RankPool) -> None:
    for wrong, name in ((ALWAYS, "no reshard"), (NEVER, "reshard")):
        failed = failures(ranks, 2, "fsdp_reshard", STRATEGIES=wrong)
        assert failed == [
            f"{name}: whole parameters after forward",
            f"{name}: whole parameters at most",
            f"{name}: bytes sent",
            "part by which that misses S",
        ]
