"""The model of the training benchmarks."""

import torch
from torch import Tensor, nn

OUTPUTS = 10
BLOCKS, LAYERS_OF_BLOCK = 6, 3


def mlp(width: int) -> nn.Sequential:
    """18 hidden layers with ReLU in blocks of 3, and a last one; [count, width] to [count, 10].

    At width 512 that is 4.7 M parameters, 18.9 MB. The weights are drawn from the same seed.
    """
    torch.manual_seed(0)
    blocks = [
        nn.Sequential(
            *(
                layer
                for _ in range(LAYERS_OF_BLOCK)
                for layer in (nn.Linear(width, width), nn.ReLU())
            )
        )
        for _ in range(BLOCKS)
    ]
    return nn.Sequential(*blocks, nn.Linear(width, OUTPUTS))


def samples(count: int, width: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Inputs [count, width] and class numbers [count]."""
    inputs = torch.randn(count, width, device=device)
    return inputs, torch.randint(OUTPUTS, (count,), device=device)
