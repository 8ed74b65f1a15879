"""Activation checkpointing of a module: less memory, for a second forward.

Chen et al., "Training Deep Nets with Sublinear Memory Cost", 2016, https://arxiv.org/abs/1604.06174.
"""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

from torch import nn
from torch.utils.checkpoint import checkpoint


class Recomputed(nn.Module):
    """A module whose activations are not kept from forward, but computed again in backward.

    Only ever the base of a class that `recompute_in_backward` makes.
    """

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """The module's own, whose second run in backward draws the same random numbers."""
        forward = super().forward
        return checkpoint(forward, *args, use_reentrant=False, context_fn=self._contexts, **kwargs)

    def _contexts(self) -> tuple[AbstractContextManager[None], AbstractContextManager[None]]:
        return nullcontext(), _buffers_as_they_are(self)


def recompute_in_backward(module: nn.Module) -> None:
    """Turn a module into one that does so: the same object, of a class that adds to its own.

    A module around it would give the parameters other names; a function in place of its forward
    would still belong to the original in a copy.
    """
    own = type(module)
    module.__class__ = type(f"Recomputed{own.__name__}", (Recomputed, own), {})


@contextmanager
def _buffers_as_they_are(module: nn.Module) -> Iterator[None]:
    """Else the second forward would count a batch twice, in BatchNorm's running statistics say."""
    buffers = list(module.buffers())
    before = [buffer.clone() for buffer in buffers]
    try:
        yield
    finally:  # backward leaves it by an exception, as soon as it has what it needs
        for buffer, value in zip(buffers, before, strict=True):
            buffer.data.copy_(value)  # autograd would take a change for one of what it saved
