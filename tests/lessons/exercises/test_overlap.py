"""The hook that sends at once, and that the lesson would see one that does not."""

from torch import nn

from lab.lessons.exercises.overlap import Averaging
from tests.lessons.doing import failures
from tests.ranks import RankPool


def always_after(model: nn.Module, *, at_once: bool) -> Averaging:
    return Averaging(model, at_once=False)


class ForgetsToDivide(Averaging):
    def finish(self) -> None:
        super().finish()
        if self.at_once:
            for parameter in self.model.parameters():
                assert parameter.grad is not None
                parameter.grad *= 2


def test_theory_holds_on_3_ranks(ranks: RankPool) -> None:
    assert failures(ranks, 3, "overlap", WIDTH=32, ROUNDS=1) == []


def test_a_hook_that_waits_for_the_end_is_seen(ranks: RankPool) -> None:
    failed = failures(ranks, 2, "overlap", Averaging=always_after, WIDTH=32, ROUNDS=1)
    assert (
        failed
        == [
            "messages that left during backward, by hook",
            "of these before the first layer's gradients",
        ][:1]
    )


def test_other_gradients_are_seen(ranks: RankPool) -> None:
    failed = failures(ranks, 2, "overlap", Averaging=ForgetsToDivide, WIDTH=32, ROUNDS=1)
    assert failed == ["difference of the two ways' gradients"]
