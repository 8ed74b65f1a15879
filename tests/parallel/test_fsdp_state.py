"""Saving and loading sharded models and optimisers, among real ranks."""

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed import fsdp as torch_fsdp
from torch.distributed.fsdp.wrap import ModuleWrapPolicy
from torch.nn.functional import mse_loss

from lab.parallel import DDP, FSDP, FullStateDictConfig, StateDictType, join_shards
from tests.ranks import RankPool

SHARDED = StateDictType.SHARDED_STATE_DICT
FULL = StateDictType.FULL_STATE_DICT


class Net(nn.Module):
    """channels_last, tied weights, buffers, a scalar, a frozen layer, two dtypes."""

    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.conv = nn.Conv2d(3, 5, 3)
        weight = self.conv.weight
        weight.data = weight.data.to(memory_format=torch.channels_last)
        self.norm = nn.BatchNorm2d(5)
        self.tied = nn.Sequential(nn.Linear(20, 20), nn.Linear(20, 20))
        self.tied[1].weight = self.tied[0].weight
        self.frozen = nn.Linear(20, 20).requires_grad_(False)
        self.last = nn.Linear(20, 3).double()
        self.scale = nn.Parameter(torch.tensor(2.0))

    def forward(self, images: Tensor) -> Tensor:
        hidden = self.norm(self.conv(images)).flatten(1)
        hidden = self.frozen(self.tied(hidden))
        result: Tensor = self.last(hidden.double()) * self.scale
        return result


def sharded(seed: int = 0, group: dist.ProcessGroup | None = None) -> FSDP:
    policy = ModuleWrapPolicy({nn.Conv2d, nn.Sequential})
    return FSDP(Net(seed), group, auto_wrap_policy=policy)


def adam(model: nn.Module) -> torch.optim.Optimizer:
    named = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
    return torch.optim.AdamW(
        [
            {"params": [p for name, p in named if "weight" in name], "weight_decay": 0.1},
            {"params": [p for name, p in named if "weight" not in name], "weight_decay": 0.0},
        ],
        lr=0.01,
    )


def train(model: Any, optimizer: torch.optim.Optimizer, first: int, last: int) -> None:
    """The same batch on all ranks, so that any number of ranks computes the same."""
    for step in range(first, last):
        generator = torch.Generator().manual_seed(step)
        images = torch.randn(4, 3, 4, 4, generator=generator)
        targets = torch.randn(4, 3, generator=generator).double()
        optimizer.zero_grad()
        mse_loss(model(images), targets).backward()
        optimizer.step()


def same(found: Any, expected: Any, path: str = "") -> None:
    if isinstance(expected, Tensor):
        assert torch.equal(found, expected), path
        assert found.stride() == expected.stride(), path
    elif isinstance(expected, dict):
        assert found.keys() == expected.keys(), path
        for key, value in expected.items():
            same(found[key], value, f"{path}.{key}")
    else:
        assert found == expected, path


def by_names(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """A bare model's optimiser state as FSDP gives it."""
    names = {id(p): name for name, p in model.named_parameters()}
    return {
        "state": {names[id(p)]: dict(state) for p, state in optimizer.state.items()},
        "param_groups": [
            {**group, "params": [names[id(p)] for p in group["params"]]}
            for group in optimizer.param_groups
        ],
    }


def round_trips() -> None:
    """Whole states go between one process, DDP and FSDP, on any number of ranks."""
    alone, model = Net(), sharded()
    whole, parts = adam(alone), adam(model)
    train(alone, whole, 0, 2)
    train(model, parts, 0, 2)
    state, optimizer_state = model.state_dict(), FSDP.optim_state_dict(model, parts)
    same(state, alone.state_dict())
    same(optimizer_state, by_names(alone, whole))

    # Into DDP, and on to one process.
    replica = DDP(Net(seed=1))
    replica.load_state_dict(copy.deepcopy(state))
    same(replica.state_dict(), state)
    # Into FSDP on fewer ranks, with the optimiser, and on from there.
    pair = dist.new_group([0, 1]) if dist.get_world_size() > 2 else None
    if pair is None or dist.get_rank() < 2:
        again = sharded(seed=1, group=pair)
        again.load_state_dict(alone.state_dict())
        optimizer = adam(again)
        optimizer.load_state_dict(
            FSDP.optim_state_dict_to_load(again, optimizer, copy.deepcopy(optimizer_state))
        )
        train(alone, whole, 2, 4)
        train(again, optimizer, 2, 4)
        same(again.state_dict(), alone.state_dict())
        same(FSDP.optim_state_dict(again, optimizer), by_names(alone, whole))


@pytest.mark.parametrize("world_size", [1, 2, 4])
def test_whole_states_fit_everywhere(ranks: RankPool, world_size: int) -> None:
    ranks.run(world_size, round_trips)


def save_shards(folder: str) -> dict[str, Any]:
    model = sharded()
    optimizer = adam(model)
    train(model, optimizer, 0, 2)
    rank = dist.get_rank()
    before = model.meter.sent_bytes
    with FSDP.state_dict_type(model, SHARDED):
        state = {"model": model.state_dict(), "optimizer": FSDP.optim_state_dict(model, optimizer)}
    assert model.meter.sent_bytes == before
    torch.save(state, Path(folder) / f"{rank}.pt")
    held = sum(
        value["values"].numel()
        for name, value in state["model"].items()
        if isinstance(value, dict) and name != "tied.1.weight"
    )
    assert held == sum(p.numel() for p in model.parameters())
    # The same number of ranks takes the shards as they are.
    again = sharded(seed=1)
    again.load_state_dict(torch.load(Path(folder) / f"{rank}.pt")["model"])
    same(again.state_dict(), model.state_dict())
    again_optimizer = adam(again)
    again_optimizer.load_state_dict(
        FSDP.optim_state_dict_to_load(again, again_optimizer, state["optimizer"])
    )
    whole = FSDP.optim_state_dict(model, optimizer)
    same(FSDP.optim_state_dict(again, again_optimizer), whole)
    return {"model": model.state_dict(), "optimizer": whole}


def load_shards(folder: str, expected: dict[str, Any]) -> None:
    states = [torch.load(path) for path in sorted(Path(folder).glob("*.pt"))]
    model = sharded(seed=1)
    with pytest.raises(ValueError, match=r"saved by another number of ranks: .* with join_shards"):
        model.load_state_dict(copy.deepcopy(states[0]["model"]))
    with pytest.raises(ValueError, match="some ranks' parts are missing"):
        join_shards(states[:-1])
    whole = join_shards(states)
    same(whole, expected)
    model.load_state_dict(whole["model"])
    same(model.state_dict(), expected["model"])
    optimizer = adam(model)
    optimizer.load_state_dict(FSDP.optim_state_dict_to_load(model, optimizer, whole["optimizer"]))
    same(FSDP.optim_state_dict(model, optimizer), expected["optimizer"])


def test_shards_of_four_ranks_load_on_three(ranks: RankPool, tmp_path: Path) -> None:
    results = ranks.run(4, save_shards, str(tmp_path))
    for result in results:
        same(result, results[0])
    ranks.run(3, load_shards, str(tmp_path), results[0])


def settings() -> None:
    model = sharded()
    optimizer = adam(model)
    train(model, optimizer, 0, 1)
    config = FullStateDictConfig(offload_to_cpu=True, rank0_only=True)
    with FSDP.state_dict_type(model, FULL, config, config):
        state, states = model.state_dict(), FSDP.optim_state_dict(model, optimizer)
    if dist.get_rank() == 0:
        same(state, {**Net().state_dict(), **state})
        assert states["state"].keys() >= {"conv.weight", "scale"}
    else:
        assert (state, states) == ({}, {})
    assert FSDP.get_state_dict_type(model).state_dict_type is FULL

    # torch's classes; a plain module around; keys that are missing or too many.
    theirs = torch_fsdp.FullStateDictConfig(rank0_only=False, offload_to_cpu=True)
    outer = nn.Sequential(nn.Linear(2, 2), model)
    with FSDP.state_dict_type(outer, torch_fsdp.StateDictType.FULL_STATE_DICT, theirs):
        whole = outer.state_dict()
    bare = nn.Sequential(nn.Linear(2, 2), Net())
    assert list(whole) == list(bare.state_dict())
    other = nn.Sequential(nn.Linear(2, 2), sharded(seed=1))
    other.load_state_dict(whole)
    same(other.state_dict(), whole)
    with pytest.raises(ValueError, match="LOCAL_STATE_DICT is not supported"):
        FSDP.set_state_dict_type(model, torch_fsdp.StateDictType.LOCAL_STATE_DICT)
    with pytest.raises(ValueError, match="no module in it is wrapped"):
        FSDP.get_state_dict_type(nn.Linear(2, 2))

    state = model.state_dict()
    partial_state = {key: value for key, value in state.items() if key != "tied.0.bias"}
    with pytest.raises(RuntimeError, match=r'Missing key\(s\) in state_dict: "tied.0.bias"'):
        model.load_state_dict(dict(partial_state))
    found = model.load_state_dict({**partial_state, "more": torch.ones(1)}, strict=False)
    assert found.missing_keys == ["tied.0.bias"]
    assert found.unexpected_keys == ["more"]
    wrong = {**state, "scale": torch.ones(3)}
    with pytest.raises(RuntimeError, match="size mismatch for scale"):
        model.load_state_dict(wrong)
    same(model.state_dict(), state)
    state_of_optimizer = FSDP.optim_state_dict(model, optimizer)
    state_of_optimizer["param_groups"][0]["params"].remove("conv.weight")
    with pytest.raises(ValueError, match=r"knows nothing of conv\.weight"):
        FSDP.optim_state_dict_to_load(model, optimizer, state_of_optimizer)
    train(model, optimizer, 1, 2)


def test_settings_and_errors(ranks: RankPool) -> None:
    ranks.run(2, settings)
