"""ZeRO stage 1 among real ranks, against the whole optimiser."""

import copy
from typing import Any, Literal

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.optim.lr_scheduler import OneCycleLR, StepLR

from lab.parallel import DDP, ZeroRedundancyOptimizer
from tests.ranks import RankPool

OPTIMIZERS: dict[str, tuple[type[torch.optim.Optimizer], dict[str, Any]]] = {
    "sgd": (torch.optim.SGD, {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.01}),
    "adam": (torch.optim.Adam, {"lr": 0.01}),
    "adamw": (torch.optim.AdamW, {"lr": 0.01, "amsgrad": True}),
}


class Net(nn.Module):
    """Odd sizes, a scalar, channels_last, two dtypes, a parameter that is only sometimes used."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.conv = nn.Conv2d(3, 5, 3)
        weight = self.conv.weight
        weight.data = weight.data.to(memory_format=torch.channels_last)
        self.wide = nn.Linear(20, 7).double()
        self.sometimes = nn.Linear(7, 7).double()
        self.scale = nn.Parameter(torch.tensor(2.0))

    def forward(self, images: Tensor, step: int) -> Tensor:
        hidden: Tensor = self.wide(self.conv(images).flatten(1).double())
        return (self.sometimes(hidden) if step == 1 else hidden) * self.scale


def groups(model: nn.Module) -> list[dict[str, Any]]:
    named = list(model.named_parameters())
    return [
        {"params": [p for name, p in named if "weight" in name]},
        {"params": [p for name, p in named if "weight" not in name], "weight_decay": 0.0},
    ]


def steps(model: Any, optimizer: torch.optim.Optimizer, first: int, last: int) -> None:
    scheduler = StepLR(optimizer, step_size=2, gamma=0.5)
    for step in range(first, last):
        generator = torch.Generator().manual_seed(step)
        inputs = torch.randn(2, 3, 4, 4, generator=generator)
        optimizer.zero_grad()
        model(inputs, step).square().mean().backward()
        optimizer.step()
        scheduler.step()


def train(name: str) -> tuple[int, int, int]:
    """All ranks have the same batch, so that the averaged gradient is exact at N = 1, 2, 4."""
    kind, options = OPTIMIZERS[name]
    alone, sharded = Net(), Net()
    whole = kind(groups(alone), **options)
    model = DDP(sharded, find_unused_parameters=True)
    zero = ZeroRedundancyOptimizer(groups(sharded), kind, **options)
    steps(alone, whole, 0, 4)
    steps(model, zero, 0, 4)
    same(alone, sharded)

    # The state is the whole optimiser's, there and back, and onto other parts of parameters.
    with pytest.raises(RuntimeError, match="spread over the ranks"):
        zero.state_dict()
    for to in range(dist.get_world_size()):
        zero.consolidate_state_dict(to)
    state, expected = zero.state_dict(), whole.state_dict()
    assert state["state"].keys() == expected["state"].keys()
    for number, values in expected["state"].items():
        for key, value in values.items():
            torch.testing.assert_close(state["state"][number][key], value, rtol=0, atol=0)
    held = zero.state_bytes()
    whole.load_state_dict(copy.deepcopy(state))
    pair = dist.new_group([0, 1]) if dist.get_world_size() > 1 else None
    if dist.get_rank() < 2:
        again = Net()
        again.load_state_dict(sharded.state_dict())
        among_two = ZeroRedundancyOptimizer(groups(again), kind, pair, **options)
        among_two.load_state_dict(copy.deepcopy(state))
        steps(alone, whole, 4, 6)
        steps(again, among_two, 4, 6)
        same(alone, again)
    total = sum(p.nbytes for p in sharded.parameters())
    largest = max(p.element_size() for p in sharded.parameters())
    return held, total, largest


def same(one: nn.Module, other: nn.Module) -> None:
    for (name, a), b in zip(one.named_parameters(), other.parameters(), strict=True):
        assert torch.equal(a, b), name
        assert a.stride() == b.stride(), name


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("world_size", [1, 2, 4])
def test_steps_are_bitwise_the_whole_optimisers(
    ranks: RankPool, world_size: int, name: str
) -> None:
    copies = {"sgd": 1, "adam": 2, "adamw": 3}[name]
    for held, total, largest in ranks.run(world_size, train, name):
        # Beside them Adam counts steps: 4 bytes for each piece. Rounding up: in 4 flat tensors.
        slack = 4 * copies * largest + 4 * 10
        assert held <= copies * total / world_size + slack


def train_three() -> list[Tensor]:
    torch.manual_seed(dist.get_rank())
    model = DDP(nn.Linear(5, 3))
    zero = ZeroRedundancyOptimizer(model.parameters(), torch.optim.Adam, lr=0.1)
    for _ in range(3):
        zero.zero_grad()
        model(torch.randn(4, 5)).square().mean().backward()
        zero.step()
    assert zero.param_groups[0]["betas"] == (0.9, 0.999)
    zero.add_param_group({"params": [nn.Parameter(torch.zeros(3))]})
    assert zero.param_groups[1]["betas"] == (0.9, 0.999)
    return [p.detach().clone() for p in model.parameters()]


def test_ranks_stay_equal_where_parts_do_not_divide(ranks: RankPool) -> None:
    first, *others = ranks.run(3, train_three)
    for other in others:
        assert all(torch.equal(a, b) for a, b in zip(first, other, strict=True))


def cycle(stage: Literal[1, 2]) -> list[float]:
    model = DDP(nn.Linear(5, 3))
    zero = ZeroRedundancyOptimizer(
        model.parameters(), torch.optim.Adam, stage=stage, model=model if stage == 2 else None
    )
    scheduler = OneCycleLR(zero, max_lr=0.1, total_steps=4)
    found = []
    for _ in range(3):
        model(torch.ones(4, 5)).square().mean().backward()
        zero.step()
        scheduler.step()
        found.append(zero.param_groups[0]["betas"][0])
    return found


@pytest.mark.parametrize("stage", [1, 2])
def test_schedulers_find_the_optimisers_defaults(ranks: RankPool, stage: Literal[1, 2]) -> None:
    layer = nn.Linear(5, 3)
    whole = torch.optim.Adam(layer.parameters())
    scheduler = OneCycleLR(whole, max_lr=0.1, total_steps=4)
    expected = []
    for _ in range(3):
        whole.step()
        scheduler.step()
        expected.append(whole.param_groups[0]["betas"][0])
    assert ranks.run(1, cycle, stage) == [expected]


def moved() -> str:
    layer = nn.Linear(2, 2)
    zero = ZeroRedundancyOptimizer(layer.parameters(), torch.optim.SGD, lr=1.0)
    zero.step()
    layer.bias.data = layer.bias.data.clone()
    with pytest.raises(RuntimeError) as error:
        zero.step()
    return str(error.value)


def test_a_parameter_with_other_memory_is_an_error(ranks: RankPool) -> None:
    assert ranks.run(1, moved)[0].startswith("parameter 1, [2], got other memory")


def refusals() -> list[str]:
    layer = nn.Linear(2, 2)
    with pytest.raises(ValueError, match="LBFGS needs whole parameters") as first:
        ZeroRedundancyOptimizer(layer.parameters(), torch.optim.LBFGS)
    zero = ZeroRedundancyOptimizer(layer.parameters(), torch.optim.SGD, lr=1.0)
    state = torch.optim.SGD([layer.weight], lr=1.0).state_dict()
    with pytest.raises(ValueError, match=r"groups of \[1\] parameters, here are \[2\]") as second:
        zero.load_state_dict(state)
    return [str(first.value), str(second.value)]


def test_what_cannot_be_is_refused(ranks: RankPool) -> None:
    assert len(ranks.run(1, refusals)[0]) == 2
