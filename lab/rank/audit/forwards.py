"""When a model is called, what it is given, and whether that is to train it."""

import functools
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from .hooks import Hooks
from .models import is_part as is_part_of_whole
from .tensors import digests

Listener = Callable[..., None]
DEEPEST = 4
"""How deep in containers of containers a model's inputs are looked for."""


class Forwards:
    """Calls of modules that no other module calls; not in backward, which may compute again."""

    def __init__(self, hooks: Hooks) -> None:
        self.before: list[Listener] = []
        """Called with (module, inputs): a model is about to be called, with tensors."""
        self.after: list[Listener] = []
        """Called with (module,): it has returned."""
        self.in_parts = False
        """Whether the script exchanges activations: ranks with parts of a model share samples."""
        self._busy = False
        hooks.before_backward.append(self._backward_begins)
        hooks.after_backward.append(self._backward_ends)
        call = nn.Module.__call__

        @functools.wraps(call)
        def called(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
            if self._busy or torch.compiler.is_compiling():
                return call(module, *args, **kwargs)
            self._busy = True
            try:
                hooks.tell(self.before, module, (args, kwargs))
                result = call(module, *args, **kwargs)
                hooks.tell(self.after, module)
                return result
            finally:
                self._busy = False

        nn.Module.__call__ = called  # type: ignore[method-assign]  # every model passes through it

    def _backward_begins(self, *_: Any) -> None:
        self._busy = True

    def _backward_ends(self, *_: Any) -> None:
        self._busy = False


def is_part(module: nn.Module) -> bool:
    """Whether it computes with parts of weights (tensor parallel), and not with gathered ones."""
    meshes = [one.device_mesh for one in module.parameters() if hasattr(one, "device_mesh")]
    gathers = any(hasattr(one, "unshard") for one in module.modules())  # FSDP
    return any(mesh.ndim > 1 for mesh in meshes) or bool(meshes and not gathers)


def weights_digest(module: nn.Module) -> int:
    """Of one of its parameters: ranks whose weights differ are no replicas. 0: all are parts."""
    for name, parameter in module.named_parameters():
        if parameter.requires_grad and not is_part_of_whole(name, parameter):
            return digests([parameter])[0]
    return 0


def is_training(module: nn.Module) -> bool:
    """Whether what it computes is for a gradient."""
    return module.training and torch.is_grad_enabled()


def tensors_of(inputs: Any, depth: int = 0) -> Iterator[Tensor]:
    """The tensors in what a model is given, in order."""
    if isinstance(inputs, Tensor):
        yield inputs
    elif depth < DEEPEST and isinstance(inputs, dict):
        for value in inputs.values():
            yield from tensors_of(value, depth + 1)
    elif depth < DEEPEST and isinstance(inputs, list | tuple):
        for value in inputs:
            yield from tensors_of(value, depth + 1)


def samples_of(inputs: Any) -> list[Tensor]:
    """Those tensors that have as many rows as the first: the samples of a batch."""
    tensors = [one for one in tensors_of(inputs) if one.ndim and type(one) is Tensor]
    return [one for one in tensors if one.shape[0] == tensors[0].shape[0]]
