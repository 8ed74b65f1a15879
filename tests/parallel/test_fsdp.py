"""FullyShardedDataParallel among real ranks, against one process and against torch's."""

import contextlib
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.functional import mse_loss
from torch.utils.checkpoint import checkpoint

from lab.parallel import FSDP, BackwardPrefetch, ShardingStrategy
from tests.parallel.one_process import accumulate
from tests.ranks import RankPool

WORLD_SIZES = (1, 2, 3, 4)
STEPS = 3


class Block(nn.Module):
    """Odd sizes, a frozen layer beside a trained one, a scalar, tied weights."""

    def __init__(self, use_reentrant: bool | None = None) -> None:
        super().__init__()
        self.first = nn.Linear(7, 7)
        self.again = nn.Linear(7, 7)
        self.again.weight = self.first.weight
        self.frozen = nn.Linear(7, 7).requires_grad_(False)
        self.scale = nn.Parameter(torch.tensor(1.5))
        self.use_reentrant = use_reentrant

    def forward(self, inputs: Tensor) -> Tensor:
        if self.use_reentrant is None:
            return self.inner(inputs)
        result: Tensor = checkpoint(self.inner, inputs, use_reentrant=self.use_reentrant)
        return result

    def inner(self, inputs: Tensor) -> Tensor:
        hidden = torch.tanh(self.again(torch.tanh(self.first(inputs))))
        result: Tensor = inputs + (self.frozen(inputs) + hidden) * self.scale
        return result


class Net(nn.Module):
    """channels_last, two dtypes, BatchNorm, a unit without parameters."""

    def __init__(self, seed: int, use_reentrant: bool | None = None) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.conv = nn.Conv2d(3, 7, 3)
        weight = self.conv.weight
        weight.data = weight.data.to(memory_format=torch.channels_last)
        self.norm = nn.BatchNorm2d(7)
        self.blocks = nn.ModuleList(Block(use_reentrant) for _ in range(3))
        self.empty = nn.Tanh()
        self.wide = nn.Linear(28, 5).double()

    def forward(self, images: Tensor) -> Tensor:
        hidden = self.norm(self.conv(images)).permute(0, 2, 3, 1).flatten(1, 2)
        for block in self.blocks:
            hidden = block(hidden)
        result: Tensor = self.wide(self.empty(hidden).flatten(1).double())
        return result


def wrapped_by_hand(model: Net, **options: Any) -> FSDP:
    model.empty = FSDP(model.empty, **options)  # type: ignore[assignment]
    for number, block in enumerate(model.blocks):
        model.blocks[number] = FSDP(block, **options)
    return FSDP(model, **options)


def batch(rank: int, step: int, part: int = 0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1 + rank + 10 * step + 100 * part)
    return (
        torch.randn(4, 3, 4, 4, generator=generator),
        torch.randn(4, 5, generator=generator).double(),
    )


def adam(model: nn.Module) -> torch.optim.Optimizer:
    decayed = [p for name, p in model.named_parameters() if "weight" in name and p.requires_grad]
    others = [p for name, p in model.named_parameters() if "weight" not in name and p.requires_grad]
    groups = [{"params": decayed, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=0.01)


def one_process(world_size: int, parts: int) -> tuple[nn.Module, torch.optim.Optimizer]:
    """Accumulate all ranks' batches in rank order, divide, step."""
    model = Net(seed=0)
    optimizer = adam(model)
    accumulate(model, optimizer, batch, steps=STEPS, world_size=world_size, parts=parts)
    return model, optimizer


def same_state(found: Any, expected: Any, path: str = "") -> None:
    """Bitwise, whatever is nested in whatever."""
    if isinstance(expected, Tensor):
        assert found.shape == expected.shape, path
        assert torch.equal(found, expected), path
    elif isinstance(expected, dict):
        assert found.keys() == expected.keys(), path
        for key, value in expected.items():
            same_state(found[key], value, f"{path}.{key}")
    else:
        assert found == expected, path


def named(optimizer: torch.optim.Optimizer, model: nn.Module) -> dict[str, Any]:
    """A bare model's optimiser state by names."""
    names = {id(p): name for name, p in model.named_parameters()}
    return {names[id(p)]: dict(state) for p, state in optimizer.state.items()}


OPTIONS: dict[str, dict[str, Any]] = {
    "default": {},
    "kept": {"sharding_strategy": ShardingStrategy.SHARD_GRAD_OP},
    "prefetched after": {"backward_prefetch": BackwardPrefetch.BACKWARD_POST},
    "not prefetched": {"backward_prefetch": None, "forward_prefetch": False},
}


def parameters_of(model: nn.Module) -> dict[str, Tensor]:
    """Without BatchNorm's statistics, which follow each rank's own batches."""
    return {
        name: value
        for name, value in model.state_dict().items()
        if "running" not in name and "num_batches" not in name
    }


def train(options: dict[str, Any], parts: int, use_reentrant: bool | None) -> tuple[FSDP, Any]:
    model = wrapped_by_hand(Net(0, use_reentrant), **options)
    optimizer = adam(model)
    for step in range(STEPS):
        optimizer.zero_grad()
        for part in range(parts):
            last = part == parts - 1
            with contextlib.nullcontext() if last else model.no_sync():
                inputs, targets = batch(dist.get_rank(), step, part)
                mse_loss(model(inputs), targets).backward()
        optimizer.step()
        assert model.meter.parameters.now == 0
        assert model.meter.gradients.now == 0
    return model, optimizer


def train_all() -> int:
    """The one process is each rank for itself: here, with the same number of threads."""
    trained = 0
    for parts in (1, 2):
        expected, its_optimizer = one_process(dist.get_world_size(), parts)
        for options in OPTIONS.values():
            for use_reentrant in (None, False, True):
                model, optimizer = train(options, parts, use_reentrant)
                same_state(parameters_of(model), parameters_of(expected))
                state = FSDP.optim_state_dict(model, optimizer)["state"]
                same_state(state, named(its_optimizer, expected))
                trained += 1
    return trained


@pytest.mark.parametrize("world_size", WORLD_SIZES)
def test_training_is_bitwise_one_process(ranks: RankPool, world_size: int) -> None:
    assert ranks.run(world_size, train_all) == [2 * 3 * len(OPTIONS)] * world_size
