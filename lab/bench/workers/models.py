"""The model of the training benchmarks."""

from itertools import pairwise

import torch
from torch import Tensor, nn

INPUTS, OUTPUTS, HIDDEN_LAYERS = 512, 10, 5


def mlp(width: int) -> nn.Sequential:
    """Five hidden layers with ReLU; at width 1024 that is 4.7 M parameters, 18.9 MB.

    The weights are drawn anew from the same seed.
    """
    torch.manual_seed(0)
    sizes = [INPUTS, *[width] * HIDDEN_LAYERS]
    layers: list[nn.Module] = []
    for inputs, outputs in pairwise(sizes):
        layers += [nn.Linear(inputs, outputs), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(width, OUTPUTS))


def samples(count: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Inputs [count, 512] and class numbers [count]."""
    inputs = torch.randn(count, INPUTS, device=device)
    return inputs, torch.randint(OUTPUTS, (count,), device=device)
