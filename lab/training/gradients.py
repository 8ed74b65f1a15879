"""Whose gradient is not finite: looked at before it is averaged, since then all ranks have it."""

from typing import Any

import torch
from torch import Tensor, nn

from lab.parallel.graph import tensors_in


class OwnGradient:
    """Watches what this rank's backward computes. Its cost is to read each gradient once more."""

    def __init__(self, model: nn.Module, *, sharded: bool) -> None:
        """Watch from now on.

        Args:
            model: bare, on its device, before it is wrapped.
            sharded: its parameters will not see this rank's own gradient, as with FSDP. Then the
                gradients of what its layers give are watched, through which those of the
                parameters are computed.
        """
        parameters = list(model.parameters())
        self._norm = torch.zeros((), device=parameters[0].device if parameters else None)
        if not sharded:
            for parameter in parameters:
                if parameter.requires_grad:
                    parameter.register_hook(self._look)
            return
        for module in model.modules():
            if module is model or any(True for _ in module.parameters(recurse=False)):
                module.register_forward_hook(self._watch)

    def take(self) -> Tensor:
        """A norm of what came since the last time, a scalar: finite, unless something was not."""
        norm, self._norm = self._norm, torch.zeros_like(self._norm)
        return norm

    def _watch(self, _: nn.Module, __: Any, outputs: Any) -> None:
        for output in tensors_in(outputs):
            if output.requires_grad:
                output.register_hook(self._look)

    def _look(self, gradient: Tensor) -> None:
        # Squares overflow before the gradient does: then Adam's averages of squares would as well.
        norm = torch.linalg.vector_norm(gradient.detach(), dtype=torch.float32)
        self._norm = torch.maximum(self._norm, norm)  # NaN is above all
