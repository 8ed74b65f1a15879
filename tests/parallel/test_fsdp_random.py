"""FullyShardedDataParallel on random models, against one process; and against torch's FSDP2."""

import contextlib
import copy
from typing import Any

import pytest
import torch
import torch.distributed as dist
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.utils.checkpoint import checkpoint

from lab.parallel import FSDP, BackwardPrefetch, ShardingStrategy
from tests.ranks import RankPool

DTYPES = [torch.float32, torch.float64, torch.bfloat16]
WIDTH = 5


class Tree(nn.Module):
    """Layers and trees, with a scale of their own, some frozen, tied or checkpointed."""

    def __init__(self, parts: list[nn.Module], plan: dict[str, Any]) -> None:
        super().__init__()
        self.parts = nn.ModuleList(parts)
        if plan["scale"]:
            self.scale = nn.Parameter(torch.full((), 1.25))
        if plan["unused"]:
            self.unused = nn.Parameter(torch.ones(3))
        self.plan = plan

    def forward(self, inputs: Tensor) -> Tensor:
        if self.plan["checkpoint"] is None:
            return self.inner(inputs)
        reentrant = self.plan["checkpoint"]
        result: Tensor = checkpoint(self.inner, inputs, use_reentrant=reentrant)
        return result

    def inner(self, inputs: Tensor) -> Tensor:
        hidden = inputs
        for part in self.parts:
            hidden = part(hidden)
        if self.plan["twice"]:
            hidden = self.parts[0](hidden)
        return hidden * self.scale if self.plan["scale"] else hidden


class Leaf(nn.Module):
    """A layer of any dtype between float32."""

    def __init__(self, layer: nn.Linear) -> None:
        super().__init__()
        self.layer = layer
        self.dtype = layer.weight.dtype

    def forward(self, inputs: Tensor) -> Tensor:
        return inputs + torch.tanh(self.layer(inputs.to(self.dtype))).float()


def trees(depth: int) -> st.SearchStrategy[dict[str, Any]]:
    leaf = st.fixed_dictionaries(
        {
            "dtype": st.sampled_from(DTYPES),
            "bias": st.booleans(),
            "frozen": st.booleans(),
            "wrap": st.booleans(),
        }
    )
    part = leaf if depth == 0 else st.one_of(leaf, trees(depth - 1))
    return st.fixed_dictionaries(
        {
            "parts": st.lists(part, min_size=1, max_size=3),
            "scale": st.booleans(),
            "unused": st.booleans(),
            "tied": st.booleans(),
            "twice": st.booleans(),
            "checkpoint": st.sampled_from([None, None, True, False]),
            "wrap": st.booleans(),
        }
    )


def build(plan: dict[str, Any], options: dict[str, Any] | None) -> nn.Module:
    """With options: its marked parts wrapped."""
    module: nn.Module
    if "parts" in plan:
        parts = [build(part, options) for part in plan["parts"]]
        if plan["tied"]:
            again, other = (Leaf(nn.Linear(WIDTH, WIDTH)) for _ in range(2))
            other.layer.weight = again.layer.weight
            parts += [again, other]
        module = Tree(parts, plan)
    else:
        module = Leaf(nn.Linear(WIDTH, WIDTH, bias=plan["bias"], dtype=plan["dtype"]))
        module.requires_grad_(not plan["frozen"])
    return FSDP(module, **options) if options is not None and plan["wrap"] else module


def batch(rank: int, part: int) -> Tensor:
    generator = torch.Generator().manual_seed(rank + 10 * part)
    return torch.randn(3, WIDTH, generator=generator)


def compare(plan: dict[str, Any], options: dict[str, Any], parts: int) -> None:
    """Two steps of both; the reference accumulates the ranks' batches in rank order."""
    torch.manual_seed(0)
    alone = build(plan, None)
    torch.manual_seed(0)
    model = build(plan, options)
    model = model if isinstance(model, FSDP) else FSDP(model, **options)
    size = dist.get_world_size()
    trained = [p for p in alone.parameters() if p.requires_grad]
    optimizers = [torch.optim.Adam(m.parameters(), lr=0.01) for m in (alone, model)]
    for _ in range(2):
        for optimizer in optimizers:
            optimizer.zero_grad()
        if trained:
            total = [torch.zeros(())] * len(trained)
            for rank in range(size):
                replica = copy.deepcopy(alone)
                for part in range(parts):
                    data = batch(rank, part).requires_grad_()
                    replica(data).square().mean().backward()
                grads = [p.grad for p in replica.parameters() if p.requires_grad]
                own = [
                    torch.zeros_like(p) if grad is None else grad
                    for p, grad in zip(trained, grads, strict=True)
                ]
                wide = [torch.promote_types(g.dtype, torch.float32) for g in own]
                own = [g.to(w) for g, w in zip(own, wide, strict=True)]
                total = [a + b for a, b in zip(total, own, strict=True)] if rank else own
            for p, gradient in zip(trained, total, strict=True):
                p.grad = (gradient / size).to(p.dtype)
        for part in range(parts):
            last = part == parts - 1
            with contextlib.nullcontext() if last else model.no_sync():
                data = batch(dist.get_rank(), part).requires_grad_()
                model(data).square().mean().backward()
        for optimizer in optimizers:
            optimizer.step()
        assert model.meter.parameters.now == model.meter.gradients.now == 0
    state = model.state_dict()
    expected = alone.state_dict()
    assert state.keys() == expected.keys()
    for name, value in expected.items():
        if exact(plan):
            assert torch.equal(state[name], value), name
        else:
            torch.testing.assert_close(state[name], value, rtol=1e-2, atol=1e-3)


def exact(plan: dict[str, Any]) -> bool:
    """Whether each unit's gradients are sent at once.

    Not those of units that a checkpoint recomputes together, or that several reentrant ones use.
    """

    def anywhere(key: str, value: bool, plan: dict[str, Any]) -> bool:
        found = plan.get(key) is value
        return found or any(anywhere(key, value, part) for part in plan.get("parts", ()))

    def together(plan: dict[str, Any]) -> bool:
        parts = plan.get("parts", ())
        around = plan.get("checkpoint") is not None
        return any((around and anywhere("wrap", True, p)) or together(p) for p in parts)

    twice = anywhere("checkpoint", True, plan) and anywhere("twice", True, plan)
    return not twice and not together(plan)


OPTIONS = st.fixed_dictionaries(
    {
        "sharding_strategy": st.sampled_from(list(ShardingStrategy)),
        "backward_prefetch": st.sampled_from([None, *BackwardPrefetch]),
        "forward_prefetch": st.booleans(),
    }
)


def examples(count: int) -> int:
    """The same on every rank: drawn from one seed, and nothing is shrunk."""
    done = 0

    @seed(4)
    @settings(
        max_examples=count,
        deadline=None,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(trees(depth=2), OPTIONS, st.integers(1, 2))
    def each(plan: dict[str, Any], options: dict[str, Any], parts: int) -> None:
        nonlocal done
        compare(plan, options, parts)
        done += 1

    each()
    return done


@pytest.mark.parametrize("world_size", [1, 2, 3])
def test_random_models_are_bitwise_one_process(ranks: RankPool, world_size: int) -> None:
    assert min(ranks.run(world_size, examples, 25)) >= 20


def blocks() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(*(nn.Sequential(nn.Linear(6, 6), nn.Tanh()) for _ in range(3)))


def against_torch() -> None:
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    theirs, ours = blocks(), blocks()
    for number, block in enumerate(theirs):
        fully_shard(block, mesh=mesh)
        ours[number] = FSDP(ours[number])
    fully_shard(theirs, mesh=mesh)
    ours = FSDP(ours)  # type: ignore[assignment]
    optimizers = [torch.optim.AdamW(m.parameters(), lr=0.01) for m in (theirs, ours)]
    for step in range(3):
        for model, optimizer in zip((theirs, ours), optimizers, strict=True):
            optimizer.zero_grad()
            generator = torch.Generator().manual_seed(dist.get_rank() + 10 * step)
            model(torch.randn(4, 6, generator=generator)).square().mean().backward()
            optimizer.step()
    whole = ours.state_dict()
    for name, value in theirs.state_dict().items():
        torch.testing.assert_close(whole[name], value.full_tensor(), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("world_size", [2, 4])
def test_training_is_that_of_torchs_fsdp2(ranks: RankPool, world_size: int) -> None:
    ranks.run(world_size, against_torch)
