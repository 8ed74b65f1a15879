"""Which elements of a model's parameters a rank holds.

That is all that DDP, ZeRO, FSDP and torch's fully_shard differ in when they are saved: each
parameter has a `Place`, under its name in the bare model.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel as TorchDDP

from lab.errors import LabError
from lab.parallel import (
    DistributedDataParallel,
    FullyShardedDataParallel,
    MinimalDDP,
    StateDictType,
)
from lab.parallel.fsdp_state import SHARD_KEYS
from lab.training.checkpoints.chunks import Chunks

WRAPPERS = ("_orig_mod.", "_fsdp_wrapped_module.", "_checkpoint_wrapped_module.")
"""What torch.compile, FSDP and activation checkpointing add to names."""


class Place(ABC):
    """Which elements of a parameter this rank holds."""

    def __init__(self, values: Tensor, shape: torch.Size) -> None:
        """`values`: those elements. `shape`: of the whole parameter."""
        self.values = values.detach()
        self.shape = shape

    @abstractmethod
    def chunks(self, values: Tensor) -> Chunks:
        """Of a tensor with an element for each of the parameter's, in the same place."""

    def empty(self, dtype: torch.dtype) -> Tensor:
        """Memory for such a tensor."""
        return torch.empty_like(self.values, dtype=dtype)


class Whole(Place):
    """All of them."""

    def __init__(self, values: Tensor, *, everywhere: bool) -> None:
        """`everywhere`: so do all other ranks, with equal values."""
        super().__init__(values, values.shape)
        self.everywhere = everywhere

    def chunks(self, values: Tensor) -> Chunks:
        return Chunks.of_whole(values, everywhere=self.everywhere)


class Range(Place):
    """Those from one to another in the order of memory: a shard of FSDP, a piece of ZeRO."""

    def __init__(
        self, values: Tensor, shape: torch.Size, stride: Sequence[int], start: int
    ) -> None:
        """`stride`: of the whole parameter. `start`: the first element."""
        super().__init__(values, shape)
        self.stride = stride
        self.start = start

    def chunks(self, values: Tensor) -> Chunks:
        return Chunks.of_range(self.shape, self.stride, self.start, values)


class Rows(Place):
    """A part of a DTensor."""

    def __init__(self, values: Tensor) -> None:
        super().__init__(values, values.shape)

    def chunks(self, values: Tensor) -> Chunks:
        return Chunks.of_dtensor(values)


class Held:
    """What this rank holds of a model."""

    def __init__(self, model: nn.Module) -> None:
        """Look at it.

        Raises:
            LabError: it is wrapped in a way that is not known here.
        """
        self.module = _bare(model)
        with _in_parts(self.module):
            # Before anything else: fully_shard may have its parameters whole after a forward, as
            # others than the optimiser's, and shards them again for this.
            state = self.module.state_dict()
        self.names = {id(p): clean(name) for name, p in self.module.named_parameters()}
        """Of its parameters, by id. Tied ones have their first."""
        every = {clean(name) for name, _ in self.module.named_parameters(remove_duplicate=False)}
        aliases = every - set(self.names.values())
        self.parameters: dict[str, Place] = {}
        self.buffers: dict[str, Place] = {}
        self.extra: dict[str, Any] = {}
        """What modules' `get_extra_state` gave."""
        for key, value in state.items():
            name = clean(key)
            if name in aliases:
                continue
            if name.endswith("_extra_state"):
                self.extra[name] = value
            elif name in every:
                self.parameters[name] = _place_of(value)
            else:
                self.buffers[name] = Whole(value, everywhere=False)

    @property
    def places(self) -> dict[str, Place]:
        """Of parameters and buffers."""
        return {**self.parameters, **self.buffers}

    def take_extra(self, name: str, value: Any) -> None:
        """Give a module its extra state back."""
        path = name.removesuffix("_extra_state").removesuffix(".")
        self.module.get_submodule(path).set_extra_state(value)


def clean(name: str) -> str:
    """A name in the bare model."""
    for wrapper in WRAPPERS:
        name = name.replace(wrapper, "")
    return name


def _bare(model: nn.Module) -> nn.Module:
    while True:
        if isinstance(model, TorchDDP | DistributedDataParallel | MinimalDDP):
            model = model.module
        elif isinstance(inner := getattr(model, "_orig_mod", None), nn.Module):
            model = inner
        else:
            break
    for module in model.modules():
        kind = type(module)
        if (
            kind.__module__.startswith("torch.distributed.fsdp")
            and kind.__name__ == "FullyShardedDataParallel"
        ):
            raise LabError(
                "checkpoints of torch's FullyShardedDataParallel are not built: use its successor "
                "fully_shard, or FullyShardedDataParallel of lab.parallel"
            )
    return model


def _in_parts(model: nn.Module) -> AbstractContextManager[None]:
    """Inside, `state_dict` gives this rank's shards of lab.parallel's FSDP."""
    if not FullyShardedDataParallel.fsdp_modules(model):
        return nullcontext()
    return FullyShardedDataParallel.state_dict_type(model, StateDictType.SHARDED_STATE_DICT)


def _place_of(value: Any) -> Place:
    """Of a parameter, from what a state dict has of it."""
    if isinstance(value, DTensor):
        return Rows(value)
    if isinstance(value, dict) and value.keys() == SHARD_KEYS:
        return Range(value["values"], torch.Size(value["shape"]), value["stride"], value["start"])
    assert isinstance(value, Tensor)
    return Whole(value, everywhere=True)
