"""What one process computes that stands for several ranks: the reference of the tests."""

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn.functional import mse_loss


def accumulate(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    batch: Callable[[int, int, int], tuple[Tensor, Tensor]],
    *,
    steps: int,
    world_size: int,
    parts: int,
) -> None:
    """Train: accumulate all ranks' batches in rank order, divide, step.

    `batch` gives inputs and targets of (rank, step, part).
    """
    trained = [p for p in model.parameters() if p.requires_grad]
    for step in range(steps):
        total: list[Tensor] = []
        for rank in range(world_size):
            optimizer.zero_grad()
            for part in range(parts):
                inputs, targets = batch(rank, step, part)
                mse_loss(model(inputs), targets).backward()
            own = [p.grad for p in trained if p.grad is not None]
            total = [a + b for a, b in zip(total, own, strict=True)] if total else own
        for parameter, gradient in zip(trained, total, strict=True):
            parameter.grad = gradient / world_size
        optimizer.step()
