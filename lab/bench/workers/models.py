"""The model of the training benchmarks."""

import time
from typing import Any

import torch
from torch import Tensor, nn

OUTPUTS = 10
BLOCKS, LAYERS_OF_BLOCK = 6, 3
HIDDEN_LAYERS = BLOCKS * LAYERS_OF_BLOCK


class Pause(nn.Module):
    """Hands tensors and gradients on, after a while in which the cores are free.

    A third of it goes by in forward and two thirds in backward, as of a layer's computation.
    """

    def __init__(self, seconds: float) -> None:
        super().__init__()
        self.seconds = seconds

    def forward(self, tensor: Tensor) -> Tensor:
        """The same tensor, any shape."""
        passed: Tensor = _Pause.apply(tensor, self.seconds)  # type: ignore[no-untyped-call]  # torch's
        return passed


class _Pause(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: Tensor, seconds: float) -> Tensor:
        ctx.seconds = seconds
        time.sleep(seconds / 3)
        return tensor.view_as(tensor)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        time.sleep(ctx.seconds * 2 / 3)
        return gradients[0], None


def mlp(width: int, pause: Pause | None = None) -> nn.Sequential:
    """18 hidden layers with ReLU in blocks of 3, and a last one; [count, width] to [count, 10].

    At width 512 that is 4.7 M parameters, 18.9 MB. The weights are drawn from the same seed.
    """
    torch.manual_seed(0)

    def layer() -> list[nn.Module]:
        return [nn.Linear(width, width), nn.ReLU(), *([pause] if pause is not None else [])]

    blocks = [
        nn.Sequential(*(part for _ in range(LAYERS_OF_BLOCK) for part in layer()))
        for _ in range(BLOCKS)
    ]
    return nn.Sequential(*blocks, nn.Linear(width, OUTPUTS))


def samples(count: int, width: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Inputs [count, width] and class numbers [count]."""
    inputs = torch.randn(count, width, device=device)
    return inputs, torch.randint(OUTPUTS, (count,), device=device)
