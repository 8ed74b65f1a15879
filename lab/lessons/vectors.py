"""A model's gradients and parameters, each as one vector to be compared."""

import torch
from torch import Tensor, nn


def gradients(model: nn.Module) -> Tensor:
    """A copy of all that are there, [elements]."""
    return torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])


def parameters(model: nn.Module) -> Tensor:
    """A copy of all, [elements]."""
    return torch.cat([p.detach().flatten() for p in model.parameters()])


def apart(one: Tensor, other: Tensor) -> float:
    """Their largest difference."""
    return (one - other).abs().max().item()
