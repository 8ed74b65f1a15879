"""One process beside the ranks, and that the lesson would see ranks that go their own way."""

from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from tests.lessons.doing import failures
from tests.ranks import RankPool


def bare(module: nn.Module) -> nn.Module:
    """No DDP at all."""
    return module


def other_loss(logits: Tensor, targets: Tensor) -> Tensor:
    """A sum in place of a mean, so that the size of the batch counts."""
    return cross_entropy(logits, targets, reduction="sum")


def test_theory_holds_on_3_ranks(ranks: RankPool) -> None:
    assert failures(ranks, 3, "world_size_4") == []


def test_ranks_by_themselves_are_seen(ranks: RankPool) -> None:
    failed = failures(ranks, 2, "world_size_4", DistributedDataParallel=bare)
    assert "ranks with the same bits as rank 0" in failed
    assert "gradients, largest difference of 20 steps" in failed


def test_a_loss_that_is_no_mean_is_seen(ranks: RankPool) -> None:
    failed = failures(ranks, 2, "world_size_4", cross_entropy=other_loss)
    assert failed[:2] == [
        "loss, largest difference of 20 steps",
        "gradients, largest difference of 20 steps",
    ]
