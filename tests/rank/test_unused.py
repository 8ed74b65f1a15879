"""Parameters without a gradient, found from a stack."""

import inspect
from dataclasses import dataclass
from types import FrameType

import pytest

from lab.rank.unused import unused
from tests.ranks import RankPool

HEADS = ["head.weight", "head.bias"]


def _stack() -> list[FrameType]:
    return [info.frame for info in inspect.stack()]


def _names(ours: bool, inside: bool) -> tuple[list[str], list[str]]:
    """Before and after a backward that leaves one layer out."""
    import torch
    from torch import nn

    from lab.parallel import DistributedDataParallel as Ours

    @dataclass
    class Trainer:
        model: nn.Module

    class TwoHeads(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.used, self.head = nn.Linear(2, 1), nn.Linear(2, 1)
            self.frozen = nn.Linear(2, 1).requires_grad_(False)

        def forward(self, inputs: torch.Tensor) -> torch.Tensor:
            found: torch.Tensor = self.used(inputs)
            return found

    bare = TwoHeads()
    model = Ours(bare, hang_guard=False) if ours else nn.parallel.DistributedDataParallel(bare)
    holder = Trainer(model) if inside else model
    del model
    before = unused(_stack())
    (holder.model if isinstance(holder, Trainer) else holder)(torch.ones(1, 2)).sum().backward()
    return before, unused(_stack())


@pytest.mark.parametrize("ours", [False, True])
@pytest.mark.parametrize("inside", [False, True])
def test_a_layer_that_backward_left_out_is_named(ranks: RankPool, ours: bool, inside: bool) -> None:
    # Before the first backward none has a gradient, and that means nothing.
    assert ranks.run(1, _names, ours, inside) == [([], HEADS)]


def test_a_stack_without_models_names_nothing() -> None:
    assert unused(_stack()) == []
