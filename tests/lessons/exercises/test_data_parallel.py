"""Why not DataParallel, and that the lesson would see a wrong gradient or a copy left out."""

from typing import Any

from torch import Tensor, nn

from lab.lessons.exercises.data_parallel import OnThreads
from tests.lessons.doing import failures
from tests.ranks import RankPool


class Detached(OnThreads):
    """Copies whose gradients do not come back."""

    def copied(self, parameter: Tensor) -> Tensor:
        return super().copied(parameter).detach().requires_grad_()


class Uncopied(OnThreads):
    """All threads share the parameters, as GPUs cannot."""

    def copied(self, parameter: Tensor) -> Tensor:
        return parameter


class NotAveraged(nn.Module):
    """Not DDP."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, *inputs: Any) -> Any:
        return self.module(*inputs)


def test_theory_holds(ranks: RankPool) -> None:
    assert failures(ranks, 3, "data_parallel") == []


def test_gradients_that_are_lost_are_seen(ranks: RankPool) -> None:
    failed = failures(ranks, 2, "data_parallel", OnThreads=Detached)
    assert "threads: gradients differ from one process by" in failed


def test_copies_that_are_left_out_are_seen(ranks: RankPool) -> None:
    failed = failures(ranks, 2, "data_parallel", OnThreads=Uncopied)
    assert failed == ["threads: bytes in and out of device 0"]


def test_ranks_that_are_not_averaged_are_seen(ranks: RankPool) -> None:
    failed = failures(ranks, 2, "data_parallel", DistributedDataParallel=NotAveraged)
    assert "DDP: gradients differ from one process by" in failed
    assert "DDP: bytes that a rank receives" in failed
