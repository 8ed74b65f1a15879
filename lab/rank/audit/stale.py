"""Optimizers that hold none of what is trained: made before `fully_shard`, or of a copied model."""

import weakref
from collections.abc import Callable, Collection, Iterable, Sequence
from functools import partial
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer

from .hooks import Hooks
from .models import Models, Site, is_constructor
from .tensors import digests

LOOKS = (2, 4)
"""Steps between which an optimizer that gets no gradients changes none of its parameters."""


class Stale:
    """Looks at optimizers none of whose parameters has had a gradient."""

    def __init__(
        self, hooks: Hooks, models: Models, stepped: Callable[[], Iterable[Tensor]]
    ) -> None:
        """`stepped`: the parameters of all optimizers."""
        self._stepped = stepped
        self._recorder, self._models = hooks.recorder, models
        self._sites: weakref.WeakKeyDictionary[Optimizer, Site] = weakref.WeakKeyDictionary()
        self._digests: weakref.WeakKeyDictionary[Optimizer, list[int]] = weakref.WeakKeyDictionary()
        hooks.wrap(Optimizer, "__init__", after=self._on_init)

    def _on_init(self, optimizer: Optimizer, *_: Any, **__: Any) -> None:
        self._sites[optimizer] = self._recorder.site(beyond=partial(is_constructor, optimizer))

    def stepping(
        self, optimizer: Optimizer, number: int, count: int, parameters: Sequence[Tensor]
    ) -> None:
        """It steps its count-th time, and has no gradients.

        That may be right for an optimizer that makes them itself, and then changes its parameters.
        """
        if count == LOOKS[0]:
            self._digests[optimizer] = digests(parameters)
        elif count == LOOKS[1] and self._digests.pop(optimizer, None) == digests(parameters):
            stepped = {id(parameter) for parameter in self._stepped()}
            models = self._models.all()
            site = self._sites.get(optimizer)
            if site and any(_is_in_place_of(one, parameters, stepped) for one in models):
                self._recorder.record("stale", optimizer=number, count=count, **site)


def _is_in_place_of(
    model: nn.Module, parameters: Sequence[Tensor], stepped: Collection[int]
) -> bool:
    """Whether it has gradients, of parameters like these, none of which any optimizer steps."""
    theirs = list(model.parameters())
    return (
        [tuple(one.shape) for one in theirs] == [tuple(one.shape) for one in parameters]
        and {id(one) for one in theirs}.isdisjoint(stepped)
        and any(one.grad is not None for one in theirs)
    )
