"""From a bare model to the subject that a recipe asks for."""

from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as TorchDDP

from lab.parallel import (
    BackwardPrefetch,
    DistributedDataParallel,
    FullyShardedDataParallel,
    HierarchicalAllReduce,
    MinimalDDP,
    MixedPrecision,
    ShardingStrategy,
    ZeroRedundancyOptimizer,
)
from lab.parallel.comm_hooks import (
    bf16_compress_hook,
    fp16_compress_hook,
    hierarchical_hook,
    ordered_hook,
)
from lab.prove.recipe import Recipe
from lab.prove.sharded import OurFsdp, TorchFsdp
from lab.prove.subjects import DataParallel, Minimal, Subject, Zero


def one_process(recipe: Recipe, model: nn.Module) -> Subject:
    """What all others are compared with: no collective and no wrapper."""
    kind, arguments = _optimizer(recipe)
    return Subject(model, kind(model.parameters(), **arguments))


def on_ranks(recipe: Recipe, model: nn.Module, device: torch.device) -> Subject:
    """The model, wrapped, and its optimiser. A collective.

    Args:
        recipe: says how.
        model: the bare one, on the device.
        device: where this rank's tensors are.
    """
    kind, arguments = _optimizer(recipe)
    if recipe.parallel == "none":
        return one_process(recipe, model)
    if recipe.impl == "minimal":
        minimal = MinimalDDP(model)
        return Minimal(minimal, kind(minimal.parameters(), **arguments))
    if recipe.parallel == "fsdp" and recipe.impl == "torch":
        model = _torch_fsdp(recipe, model, device)
        return TorchFsdp(model, kind(model.parameters(), **arguments))
    if recipe.parallel == "fsdp":
        model = _our_fsdp(recipe, model)
        return OurFsdp(model, kind(model.parameters(), **arguments))
    hierarchical = HierarchicalAllReduce() if recipe.all_reduce == "hierarchical" else None
    replica = (
        _torch_ddp(recipe, model)
        if recipe.impl == "torch"
        else _our_ddp(recipe, model, hierarchical)
    )
    if recipe.parallel == "ddp":
        return DataParallel(replica, kind(replica.parameters(), **arguments), hierarchical)
    zero: Any = ZeroRedundancyOptimizer
    if recipe.impl == "torch":
        from torch.distributed.optim import ZeroRedundancyOptimizer as TorchZero  # slow to import

        zero = TorchZero
    if recipe.parallel == "zero2":
        arguments |= {"stage": 2, "model": replica}
    return Zero(replica, zero(replica.parameters(), kind, **arguments), hierarchical)


def units(model: nn.Module) -> dict[str, nn.Module]:
    """What FSDP gathers at once: the children that have parameters."""
    return {name: child for name, child in model.named_children() if list(child.parameters())}


def _our_ddp(
    recipe: Recipe, model: nn.Module, hierarchical: HierarchicalAllReduce | None
) -> nn.Module:
    replica = DistributedDataParallel(model, mean=recipe.mean, **_ddp_options(recipe))
    if recipe.all_reduce == "ordered":
        replica.register_comm_hook(None, ordered_hook)
    if hierarchical is not None:
        replica.register_comm_hook(hierarchical, hierarchical_hook)
    hooks = {"fp16": fp16_compress_hook, "bf16": bf16_compress_hook}
    if recipe.comm_hook != "none":
        replica.register_comm_hook(None, hooks[recipe.comm_hook])
    return replica


def _torch_ddp(recipe: Recipe, model: nn.Module) -> nn.Module:
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks  # slow to import

    replica = TorchDDP(model, **_ddp_options(recipe))
    if recipe.comm_hook == "fp16":
        replica.register_comm_hook(None, default_hooks.fp16_compress_hook)
    return replica


def _ddp_options(recipe: Recipe) -> dict[str, Any]:
    return {
        "bucket_cap_mb": recipe.bucket_cap_mb,
        "find_unused_parameters": recipe.find_unused_parameters,
        "static_graph": recipe.static_graph,
    }


def _our_fsdp(recipe: Recipe, model: nn.Module) -> nn.Module:
    """Each child that has parameters is a unit."""
    dtype = torch.bfloat16 if recipe.precision == "bfloat16" else None
    options: dict[str, Any] = {
        "sharding_strategy": ShardingStrategy.FULL_SHARD
        if recipe.reshard_after_forward
        else ShardingStrategy.SHARD_GRAD_OP,
        "backward_prefetch": BackwardPrefetch.BACKWARD_PRE if recipe.prefetch else None,
        "forward_prefetch": recipe.prefetch,
        "mixed_precision": MixedPrecision(param_dtype=dtype),
        "sync_module_states": True,
    }
    for name, child in units(model).items():
        setattr(model, name, FullyShardedDataParallel(child, **options))
    return FullyShardedDataParallel(model, **options)


def _torch_fsdp(recipe: Recipe, model: nn.Module, device: torch.device) -> nn.Module:
    """FSDP2. It overwrites nobody's weights, so rank 0's are broadcast before."""
    from torch.distributed.device_mesh import init_device_mesh  # slow to import
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    for parameter in model.parameters():
        dist.broadcast(parameter.detach(), 0)
    options: Any = {
        "mesh": init_device_mesh(device.type, (dist.get_world_size(),)),
        "reshard_after_forward": recipe.reshard_after_forward,
        "mp_policy": MixedPrecisionPolicy(
            param_dtype=torch.bfloat16 if recipe.precision == "bfloat16" else None
        ),
    }
    for unit in units(model).values():
        fully_shard(unit, **options)
    fully_shard(model, **options)
    return model


def _optimizer(recipe: Recipe) -> tuple[type[torch.optim.Optimizer], dict[str, Any]]:
    if recipe.optimizer == "adam":
        return torch.optim.Adam, {"lr": recipe.learning_rate}
    return torch.optim.SGD, {"lr": recipe.learning_rate, "momentum": 0.9}
