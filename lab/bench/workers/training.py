"""Training steps, as the benchmarks time them."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel as TorchDDP

from lab.bench.workers.harness import Bench
from lab.bench.workers.models import Pause, mlp, samples
from lab.parallel import DistributedDataParallel, HierarchicalAllReduce
from lab.parallel.comm_hooks import hierarchical_hook

LEARNING_RATE = 1e-3

Step = Callable[[], None]
Data = tuple[Tensor, Tensor]


def bare(bench: Bench, pause: Pause | None = None) -> nn.Sequential:
    """The model by itself."""
    return mlp(bench.width, pause).to(bench.world.device)


def ours(bench: Bench, pause: Pause | None = None, **options: Any) -> nn.Module:
    """The model in our DistributedDataParallel."""
    return DistributedDataParallel(bare(bench, pause), **options)


@contextmanager
def by_node(bench: Bench, pause: Pause | None = None) -> Iterator[dict[str, nn.Module]]:
    """The same with the all-reduce that adds up within each node first; nothing where none pays."""
    with closing(HierarchicalAllReduce()) as reducer:
        if not reducer.pays or bench.world.device.type != "cpu":
            yield {}
            return
        model = DistributedDataParallel(bare(bench, pause))
        model.register_comm_hook(reducer, hierarchical_hook)
        yield {"ours, hierarchical": model}


def theirs(bench: Bench, pause: Pause | None = None, **options: Any) -> nn.Module:
    """The model in torch's."""
    return TorchDDP(bare(bench, pause), **options)


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
