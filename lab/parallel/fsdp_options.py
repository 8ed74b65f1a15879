"""Options of FullyShardedDataParallel: torch's names and defaults, and the checks.

torch's own classes of these names will do as well; what counts are the names of members and fields.
They are not imported here, because `torch.distributed.fsdp` takes seconds to import. Source:
torch/distributed/fsdp/api.py.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm


class ShardingStrategy(Enum):
    """How long a unit's full parameters stay."""

    FULL_SHARD = auto()
    """Freed after forward and gathered again for backward: 3(N-1)/N S bytes a step and rank."""
    SHARD_GRAD_OP = auto()
    """Kept from forward to backward: 2(N-1)/N S bytes."""


class BackwardPrefetch(Enum):
    """When backward begins to gather the next unit."""

    BACKWARD_PRE = auto()
    """Before the gradients of the present one are computed."""
    BACKWARD_POST = auto()
    """After that: no overlap with computing, less memory."""


@dataclass
class MixedPrecision:
    """Dtypes of computing and of the wire. The shards keep the parameters' own."""

    param_dtype: torch.dtype | None = None
    """Forward and backward compute with it, and gathers send it."""
    reduce_dtype: torch.dtype | None = None
    """Gradients are sent in it; default `param_dtype`. Half precision is summed in float32."""
    buffer_dtype: torch.dtype | None = None
    """Floating buffers are converted to it, for good."""
    keep_low_precision_grads: bool = False
    """True is refused."""
    cast_forward_inputs: bool = False
    """Convert floating tensors among forward's arguments to `param_dtype` in each unit."""
    cast_root_forward_inputs: bool = True
    """The same in the unit whose forward is called first."""
    _module_classes_to_ignore: Sequence[type[nn.Module]] = (_BatchNorm,)
    """Parameters and buffers of these keep their dtype."""


@dataclass
class CPUOffload:
    """Where the shards live."""

    offload_params: bool = False
    """On the CPU, with gradients and the optimiser's states; computing stays where it was."""


class StateDictType(Enum):
    """What `state_dict` gives."""

    FULL_STATE_DICT = auto()
    """The bare model's, whole."""
    SHARDED_STATE_DICT = auto()
    """This rank's parts: see `fsdp_state.py`."""


@dataclass
class FullStateDictConfig:
    """How whole states are given; of the optimiser's as well."""

    offload_to_cpu: bool = False
    rank0_only: bool = False
    """Other ranks get an empty one."""


def reshards_after_forward(strategy: Any) -> bool:
    """Whether the full parameters go between forward and backward.

    Raises:
        ValueError: a strategy that is not supported.
    """
    name = "FULL_SHARD" if strategy is None else strategy.name
    if name == "NO_SHARD":
        raise ValueError(
            "NO_SHARD shards nothing, which is data parallelism: use DistributedDataParallel"
        )
    if name not in ShardingStrategy.__members__:
        raise ValueError(
            f"sharding_strategy {name} is not supported: FULL_SHARD or SHARD_GRAD_OP, among the "
            "ranks of one process group"
        )
    return bool(name == "FULL_SHARD")


def check_precision(precision: Any) -> MixedPrecision:
    """The same as this module's class, so that all fields are there.

    Raises:
        ValueError: an option that is not supported.
    """
    if precision is None:
        return MixedPrecision()
    if precision.keep_low_precision_grads:
        raise ValueError(
            "keep_low_precision_grads=True is not supported: gradients get the parameters' dtype"
        )
    return MixedPrecision(**vars(precision))


def group_of(process_group: dist.ProcessGroup | None, device_mesh: Any) -> dist.ProcessGroup | None:
    """The one group to shard among.

    Raises:
        ValueError: two are given, or a mesh of several dimensions.
    """
    if isinstance(process_group, tuple) or getattr(device_mesh, "ndim", 1) > 1:
        raise ValueError(
            "hybrid sharding, over a pair of groups or a mesh of two dimensions, is not supported: "
            "pass one process_group or a mesh of one dimension"
        )
    if process_group is not None and device_mesh is not None:
        raise ValueError("pass process_group or device_mesh, not both")
    group: dist.ProcessGroup | None = (
        process_group if device_mesh is None else device_mesh.get_group()
    )
    return group
