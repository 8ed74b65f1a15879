"""Shards and back: parameters must return with every bit."""

import io
from typing import Any

import torch
import torch.distributed as dist

from lab.parallel import fsdp_round_trip_sketch
from lab.prove.recipe import Recipe
from lab.prove.report import RoundTrip
from lab.prove.sharded import Sharded
from lab.prove.wrapping import on_ranks
from lab.training.wine import WineClassifier
from lab.training.world import World


def round_trip(recipe: Recipe, world: World) -> RoundTrip:
    """Try both ways. A collective; every rank gets the same answer."""
    torch.manual_seed(recipe.seed)
    model = WineClassifier().to(world.device)
    shards = everywhere(fsdp_round_trip_sketch(model), world)
    if recipe.parallel != "fsdp":
        return RoundTrip(shards, state_dict=None)
    return RoundTrip(shards, everywhere(_state_dict(recipe, model, world), world))


def _state_dict(recipe: Recipe, model: WineClassifier, world: World) -> bool:
    """Shard the model, save its whole state, load it into shards of other weights, compare."""
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    first = on_ranks(recipe, model, world.device)
    second = on_ranks(recipe, WineClassifier().to(world.device), world.device)
    assert isinstance(first, Sharded)
    assert isinstance(second, Sharded)
    second.load_whole_state(_saved_and_loaded(first.whole_state()))
    after = second.whole_state()
    return before.keys() == after.keys() and all(
        same_bits(before[name], after[name]) for name in before
    )


def same_bits(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Equal, the sign of zeros and NaNs included."""
    if (a.shape, a.dtype) != (b.shape, b.dtype):
        return False
    a, b = (tensor.detach().cpu().contiguous().view(-1).view(torch.uint8) for tensor in (a, b))
    return torch.equal(a, b)


def everywhere(true: bool, world: World) -> bool:
    """Whether it is so on all ranks."""
    flag = torch.tensor([int(true)], device=world.device)
    dist.all_reduce(flag, op=dist.ReduceOp.MIN)
    return bool(flag)


def _saved_and_loaded(state: dict[str, Any]) -> dict[str, Any]:
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    loaded: dict[str, Any] = torch.load(file, weights_only=True)
    return loaded
