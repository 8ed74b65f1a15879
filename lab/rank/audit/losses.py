"""Whether what backward starts from is a number."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from .hooks import Hooks
from .models import Site

GATHERED = 64
"""How many losses to look at in one go: on a GPU each look waits for it."""


class Losses:
    """Finds the first loss that is NaN or infinite."""

    def __init__(self, hooks: Hooks) -> None:
        self._recorder = hooks.recorder
        self._backwards = 0
        self._waiting: list[tuple[int, Tensor, Site]] = []
        self._first: dict[str, Any] | None = None
        hooks.before_backward.append(self._on_backward)

    def first_bad(self, step: int) -> dict[str, Any] | None:
        """The number of its `backward` and the `at`-th step that took it; None: none so far.

        Args:
            step: the optimizer's step that is about to take the latest losses.
        """
        if self._waiting:
            losses = torch.stack([loss.float() for _, loss, _ in self._waiting])
            good = losses.isfinite().tolist()
            if not all(good):
                number, _, site = self._waiting[good.index(False)]
                missed = self._backwards - number  # by looking at some steps only
                self._first = {"backward": number, "at": max(1, step - missed), **site}
            self._waiting.clear()
        return self._first

    def forget(self, step: int, are_finite: Callable[[], bool]) -> None:
        """Take back what did no harm: a step that a scaler of gradients left out, say.

        Args:
            step: the optimizer's that is about to be taken.
            are_finite: whether all weights are, before it.
        """
        if self._first is not None and self._first["at"] < step and are_finite():
            self._first = None

    def _on_backward(self, tensors: Any) -> None:
        self._backwards += 1
        if self._first is not None:
            return
        loss = loss_in(tensors)
        if loss is not None:
            if self._waiting and self._waiting[0][1].device != loss.device:
                self.first_bad(self._recorder.step + 1)
            self._waiting.append((self._backwards, loss, self._recorder.site()))
        if len(self._waiting) >= GATHERED:
            self.first_bad(self._recorder.step + 1)


def loss_in(tensors: Any) -> Tensor | None:
    """The loss, a copy [] of it, in what backward starts from; None: there is none.

    A copy, since the script may go on with the tensor in place: reduce it over the ranks, say.
    """
    one = tensors[0] if isinstance(tensors, Sequence) and tensors else tensors
    if not isinstance(one, Tensor) or one.is_meta:
        return None
    if one.numel() == 1 and one.is_floating_point():
        loss: Tensor = getattr(one, "_local_tensor", one).detach().clone().reshape(())
        return loss
    return None
