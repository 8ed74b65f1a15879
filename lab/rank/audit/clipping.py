"""By what gradients that are in parts on several ranks are scaled between backward and step.

Clipping scales all of them by one number, which is the same on all ranks if the norm was that of
the whole gradient, and another one on each if it was that of the rank's own part.
"""

import weakref
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from .hooks import Hooks
from .models import Site
from .tensors import local

TENSORS, ELEMENTS = 8, 16
"""How many to look at."""
TOLERANCE = 1e-3


class Clipping:
    """Compares a few elements of gradients after backward with what the step finds."""

    def __init__(self, hooks: Hooks) -> None:
        self._recorder = hooks.recorder
        self._parts: dict[int, list[weakref.ref[Tensor]]] = {}  # by optimizer
        self._seen: dict[int, list[Tensor]] = {}
        self._clipped: Site | None = None
        hooks.after_backward.append(self._after_backward)
        for name in ("clip_grad_norm_", "clip_grads_with_norm_"):
            if hasattr(torch.nn.utils.clip_grad, name):
                hooks.wrap(torch.nn.utils.clip_grad, name, before=self._on_clip)
                setattr(torch.nn.utils, name, getattr(torch.nn.utils.clip_grad, name))

    def watch(self, optimizer: int, parts: Sequence[Tensor]) -> None:
        """Look at gradients of these parameters from now on."""
        self._parts[optimizer] = [weakref.ref(part) for part in parts[:TENSORS]]
        self._seen.pop(optimizer, None)

    def scaled(self, optimizer: int) -> dict[str, Any] | None:
        """`by`: the factor since backward, and where they were clipped; None: it cannot be told."""
        before = self._seen.pop(optimizer, None)
        clipped, self._clipped = self._clipped, None
        if before is None:
            return None
        now = torch.cat([value.flatten() for value in self._look(optimizer)])
        then = torch.cat([value.flatten() for value in before])
        if now.shape != then.shape:
            return None
        large = then.abs() > then.abs().max() * 1e-2
        factors = (now[large] / then[large]).tolist()
        if not factors or max(factors) - min(factors) > TOLERANCE * abs(max(factors)):
            return None  # not by one number: clipped by value, say
        return {"by": sum(factors) / len(factors), **(clipped or self._recorder.site())}

    def _look(self, optimizer: int) -> list[Tensor]:
        parameters = [part() for part in self._parts[optimizer]]
        gradients = [p.grad for p in parameters if p is not None and p.grad is not None]
        return [local(g).flatten()[:ELEMENTS].double().clone() for g in gradients]

    def _after_backward(self, _: Any) -> None:
        for optimizer, parts in self._parts.items():
            if parts and self._recorder.sampling.due(self._recorder.step + 1):
                seen = self._look(optimizer)
                if seen:
                    self._seen[optimizer] = seen

    def _on_clip(self, *_: Any, **__: Any) -> None:
        self._clipped = self._recorder.site()
