"""Wrapped modules under torch.compile, and compiled ones inside: gradients as without it."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.distributed.fsdp.wrap import ModuleWrapPolicy

from lab.parallel import DistributedDataParallel, FullyShardedDataParallel
from tests.ranks import RankPool

Wrap = Callable[[nn.Module], nn.Module]


def ddp(module: nn.Module) -> nn.Module:
    return DistributedDataParallel(module)


def fsdp(module: nn.Module) -> nn.Module:
    return FullyShardedDataParallel(module, auto_wrap_policy=ModuleWrapPolicy({nn.Linear}))


def compiled(module: nn.Module) -> nn.Module:
    """Traced as for any backend; what is done with the graph is not the point."""
    return torch.compile(module, backend="eager")  # type: ignore[return-value]  # it is one


def gradients(wrap: Wrap, inside: Wrap, outside: Wrap) -> list[Tensor]:
    torch.manual_seed(0)
    model = wrap(inside(nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3))))
    call: Any = outside(model)
    for _ in range(2):
        model.zero_grad()
        call(torch.full((2, 4), 0.5)).square().sum().backward()
    found = [parameter.grad for parameter in model.parameters()]
    return [gradient.clone() for gradient in found if gradient is not None]


def nothing(module: nn.Module) -> nn.Module:
    return module


def compare(wrap: Wrap) -> None:
    torch._dynamo.reset()
    expected = gradients(wrap, nothing, nothing)
    assert sum(float(gradient.abs().sum()) for gradient in expected) > 0
    for inside, outside in ((nothing, compiled), (compiled, nothing)):
        found = gradients(wrap, inside, outside)
        assert all(map(torch.equal, found, expected))
        assert len(found) == len(expected)


@pytest.mark.parametrize("wrap", [ddp, fsdp])
def test_gradients_are_those_without(ranks: RankPool, wrap: Wrap) -> None:
    ranks.run(2, compare, wrap)
