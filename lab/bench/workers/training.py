"""Training steps, as the benchmarks time them."""

from collections.abc import Callable, Mapping

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from lab.bench.workers.harness import Bench
from lab.bench.workers.models import mlp, samples

LEARNING_RATE = 1e-3

Step = Callable[[], None]
Data = tuple[Tensor, Tensor]


def bare(bench: Bench) -> nn.Sequential:
    """The model by itself."""
    return mlp(bench.width).to(bench.world.device)


def batch_of(bench: Bench, count: int) -> Data:
    """Inputs and targets on this rank's device."""
    return samples(count, bench.width, bench.world.device)


def trainer(
    model: nn.Module, data: Data, after_backward: Callable[[], object] | None = None
) -> Step:
    """A training step; where `model` is bare nothing is averaged, unless `after_backward` does."""
    optimizer = torch.optim.SGD(model.parameters(), lr=LEARNING_RATE)
    inputs, targets = data

    def run() -> None:
        optimizer.zero_grad()
        cross_entropy(model(inputs), targets).backward()
        if after_backward is not None:
            after_backward()
        optimizer.step()

    return run


def trainers(models: Mapping[str, nn.Module], data: Data) -> dict[str, Step]:
    """A step of each on the same samples."""
    return {name: trainer(model, data) for name, model in models.items()}
