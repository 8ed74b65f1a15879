"""The loss in what backward starts from."""

import os

import torch

from lab.rank.audit.hooks import Hooks
from lab.rank.audit.losses import Losses, loss_in
from lab.rank.audit.recorder import Recorder
from lab.rank.events import Events


def test_it_stays_what_it_was_when_the_script_reduces_the_tensor_in_place() -> None:
    given = torch.tensor([2.0])
    alone, first = loss_in(given), loss_in((given, torch.ones(3)))
    given.mul_(7)
    assert alone is not None
    assert first is not None
    assert (alone.item(), first.item()) == (2.0, 2.0)


def test_what_is_no_scalar_is_no_loss() -> None:
    assert [loss_in(one) for one in (torch.ones(3), torch.tensor(1), (), None)] == [None] * 4
    assert loss_in(torch.ones((), device="meta")) is None


def test_an_iterator_is_left_to_backward() -> None:
    tensors = iter([torch.tensor(1.0)])
    assert loss_in(tensors) is None
    assert len(list(tensors)) == 1


def test_a_bad_loss_that_did_no_harm_is_forgotten() -> None:
    writing = os.open(os.devnull, os.O_WRONLY)
    hooks = Hooks(Recorder(Events(writing)))
    losses = Losses(hooks)
    numbers = []
    for step, loss in enumerate((1.0, float("inf"), 1.0, float("nan"), 1.0), start=1):
        hooks.tell(hooks.before_backward, torch.tensor(loss))
        losses.forget(step, lambda: step < 5)  # noqa: B023 - it is called at once
        first = losses.first_bad(step)
        numbers.append(None if first is None else first["backward"])
    os.close(writing)
    assert numbers == [None, 2, None, 4, 4]
