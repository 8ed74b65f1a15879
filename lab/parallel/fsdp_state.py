"""Saving and loading what FullyShardedDataParallel has spread over the ranks.

A full state dict is the bare model's, with its names and shapes: it fits the bare model, DDP, and
FSDP on any number of ranks. A sharded one has, for each parameter, this rank's part:

    {"layer.weight": {"shape": [3, 2], "stride": [2, 1], "start": 4, "values": tensor [2]}, ...}

It costs no communication, fits the same number of ranks, and `join_shards` makes a full one of all
ranks' without any process group. The same holds for optimisers' states.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from lab.parallel.flat_parameter import FlatParameter, Slot
from lab.parallel.fsdp_options import FullStateDictConfig, StateDictType
from lab.parallel.fsdp_unit import Unit
from lab.parallel.layout import in_memory_order

SHARD_KEYS = {"shape", "stride", "start", "values"}


@dataclass(frozen=True)
class StateDictSettings:
    """Which kind of state dict a model gives. torch's classes will do for all three."""

    state_dict_type: Any = StateDictType.FULL_STATE_DICT
    state_dict_config: Any = field(default_factory=FullStateDictConfig)
    optim_state_dict_config: Any = field(default_factory=FullStateDictConfig)

    @classmethod
    def of(cls, kind: Any, config: Any, optim_config: Any) -> "StateDictSettings":
        """With defaults for configs that are None.

        Raises:
            ValueError: a kind of torch's that is not supported.
        """
        if kind.name not in StateDictType.__members__:
            raise ValueError(f"{kind.name} is not supported: FULL_STATE_DICT or SHARDED_STATE_DICT")
        return cls(kind, config or FullStateDictConfig(), optim_config or FullStateDictConfig())

    @property
    def sharded(self) -> bool:
        """Whether this rank's parts are wanted."""
        return bool(self.state_dict_type.name == "SHARDED_STATE_DICT")

    def is_left_out(self, group: dist.ProcessGroup | None, *, optim: bool = False) -> bool:
        """Whether this rank gets none, because only rank 0 is to have it."""
        config = self.optim_state_dict_config if optim else self.state_dict_config
        wanted = not self.sharded and getattr(config, "rank0_only", False)
        return bool(wanted and dist.get_rank(group) != 0)


# The model's.


def full_or_sharded(
    entries: Mapping[str, Any], unit: Unit, settings: StateDictSettings
) -> dict[str, Any]:
    """What a state dict holds of a unit's parameters and of all else.

    Args:
        entries: whole parameters, or the unit's sharded ones as they are.
        unit: whose parameters they are.
        settings: where the tensors should be.
    """
    slots = {id(slot.sharded): slot for slot in unit.slots}
    to_cpu = settings.state_dict_config.offload_to_cpu
    result: dict[str, Any] = {}
    for key, value in entries.items():
        slot = slots.get(id(value))
        if isinstance(value, Tensor):
            value = value.detach().cpu() if to_cpu else value.detach()
        result[key] = value if slot is None else _shard(slot, value)
    return result


def with_own_parts(state: dict[str, Any], prefix: str, unit: Unit) -> None:
    """Replace shards by whole tensors of which only this rank's part counts.

    Raises:
        ValueError: a part is not this rank's.
    """
    named = [(prefix + name, slot) for slot in unit.slots for name in (slot.name, *slot.aliases)]
    for name, slot in named:
        if _is_shard(state.get(name)):
            values = _own_values(name, slot, state[name])
            whole = torch.zeros(slot.shape.numel(), dtype=values.dtype, device=values.device)
            whole[slot.offset : slot.offset + len(values)] = values
            state[name] = whole.as_strided(slot.shape, slot.stride)


# The optimiser's.


def named_optim_state(
    units: Sequence[Unit],
    names: Mapping[int, str],
    optim: torch.optim.Optimizer,
    settings: StateDictSettings,
) -> dict[str, Any]:
    """An optimiser's state by names of parameters. A collective unless sharded.

    Args:
        units: all, in the same order on every rank.
        names: of the optimiser's parameters, by id.
        optim: treats each element by itself.
        settings: whole or sharded, and where.
    """
    places = _places(units)
    wholes: dict[tuple[int, str], Tensor] = {}

    def whole_or_sharded(parameter: Tensor, key: str, value: Any) -> Any:
        if id(parameter) not in places or not _elementwise(value, parameter):
            return value
        flat, slot = places[id(parameter)]
        if settings.sharded:
            return _shard(slot, value)
        if (id(flat), key) not in wholes:
            wholes[id(flat), key] = flat.whole(_laid_out(flat, key, value, optim))
        return slot.view(wholes[id(flat), key])

    states: dict[str, Any] = {}
    for parameter in (p for group in optim.param_groups for p in group["params"]):
        state = optim.state.get(parameter, {})
        converted = {key: whole_or_sharded(parameter, key, value) for key, value in state.items()}
        if converted:
            states[names[id(parameter)]] = converted
    if settings.optim_state_dict_config.offload_to_cpu:
        states = _to_cpu(states)
    groups = [
        {**group, "params": [names[id(p)] for p in group["params"]]} for group in optim.param_groups
    ]
    return {"state": states, "param_groups": groups}


def cut_optim_state(
    units: Sequence[Unit],
    names: Mapping[int, str],
    optim: torch.optim.Optimizer,
    state: Mapping[str, Any],
) -> dict[str, Any]:
    """This rank's part of what `named_optim_state` gave, numbered as optimisers do.

    Raises:
        ValueError: it knows nothing of a parameter, or is of another number of ranks' parts.
    """
    places = _places(units)
    options = {name: group for group in state["param_groups"] for name in group["params"]}
    states, groups = {}, []
    number = 0
    for group in optim.param_groups:
        members = [names[id(p)] for p in group["params"]]
        if unknown := [name for name in members if name not in options]:
            raise ValueError(f"the optimiser's state knows nothing of {unknown[0]}")
        loaded = options[members[0]] if members else group
        first = number
        for name, parameter in zip(members, group["params"], strict=True):
            slot = places[id(parameter)][1] if id(parameter) in places else None
            if name in state["state"]:
                states[number] = {
                    key: value if slot is None else _part(name, slot, key, value)
                    for key, value in state["state"][name].items()
                }
            number += 1
        groups.append({**loaded, "params": list(range(first, number))})
    return {"state": states, "param_groups": groups}


def join_shards(states: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """A full state dict, of a model or an optimiser, from the sharded ones of all ranks.

    Needs no process group: load them with torch.load and join them anywhere.

    Raises:
        ValueError: a part is missing.
    """

    def join(path: str, values: Sequence[Any]) -> Any:
        first = values[0]
        if _is_shard(first):
            parts = sorted((v for v in values if len(v["values"])), key=lambda v: int(v["start"]))
            flat = torch.cat([part["values"] for part in parts] or [first["values"]])
            if len(flat) != torch.Size(first["shape"]).numel():
                raise ValueError(f"{path} has {len(flat)} elements: some ranks' parts are missing")
            return flat.as_strided(first["shape"], first["stride"])
        if isinstance(first, dict):
            return {key: join(f"{path}.{key}", [v[key] for v in values]) for key in first}
        return first

    joined: dict[str, Any] = join("state", states)
    return joined


def _places(units: Sequence[Unit]) -> dict[int, tuple[FlatParameter, Slot]]:
    return {
        id(slot.sharded): (flat, slot)
        for unit in units
        for flat in unit.flats
        for slot in flat.slots
    }


def _elementwise(value: Any, parameter: Tensor) -> bool:
    return isinstance(value, Tensor) and value.shape == parameter.shape


def _laid_out(flat: FlatParameter, key: str, like: Tensor, optim: torch.optim.Optimizer) -> Tensor:
    """One kind of state of all the flat parameter's slots, as its shard is laid out."""
    part = torch.zeros(flat.length, dtype=like.dtype, device=like.device)
    for slot in flat.slots:
        value = optim.state.get(slot.sharded, {}).get(key)
        if _elementwise(value, slot.sharded):
            part[slot.place] = value
    return part


def _is_shard(value: Any) -> bool:
    return isinstance(value, dict) and value.keys() == SHARD_KEYS


def _shard(slot: Slot, values: Tensor) -> dict[str, Any]:
    return {
        "shape": list(slot.shape),
        "stride": list(slot.stride),
        "start": slot.offset,
        "values": values,
    }


def _own_values(name: str, slot: Slot, shard: dict[str, Any]) -> Tensor:
    values: Tensor = shard["values"]
    mine = list(slot.shape), slot.offset, slot.sharded.numel()
    if (list(shard["shape"]), shard["start"], len(values)) != mine:
        raise ValueError(
            f"{name}: not the part of this rank, so it was saved by another number of ranks: "
            "make a full state dict of all parts with join_shards, and load that"
        )
    return values


def _part(name: str, slot: Slot, key: str, value: Any) -> Any:
    """This rank's part of one state of a whole parameter, or of a shard."""
    if _is_shard(value):
        return _own_values(name, slot, value).clone()
    # The count of steps is a scalar, and so is the average of a scalar parameter.
    if isinstance(value, Tensor) and value.shape == slot.shape and key != "step":
        flat = in_memory_order(value, slot.stride)
        return flat[slot.offset : slot.offset + slot.sharded.numel()].clone()
    return value


def _to_cpu(state: Any) -> Any:
    if isinstance(state, Tensor):
        return state.cpu()
    return (
        {key: _to_cpu(value) for key, value in state.items()} if isinstance(state, dict) else state
    )
