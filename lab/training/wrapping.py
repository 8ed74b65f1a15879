"""One model on all ranks: what `parallel` and `impl` make of a bare model and its optimiser.

The Trainer's loop is the same for all of them; what differs is here: which microbatches send
gradients, and whose norm is clipped.
"""

import math
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel as TorchDDP
from torch.optim import Optimizer

from lab.errors import UsageError
from lab.parallel import (
    DistributedDataParallel,
    FullyShardedDataParallel,
    MinimalDDP,
    SyncBatchNorm,
    ZeroRedundancyOptimizer,
)
from lab.training.gradients import OwnGradient
from lab.training.options import Options
from lab.training.recompute import recompute_in_backward
from lab.training.schedule import scaled_lr
from lab.training.world import World

OptimizerMaker = type[Optimizer] | partial[Optimizer]
"""Adam, say, or partial(AdamW, weight_decay=0.1)."""
Units = Callable[[nn.Module], Iterable[nn.Module]]
"""Which modules inside a model FSDP gathers at once and activation checkpointing computes twice."""


def children_with_parameters(model: nn.Module) -> list[nn.Module]:
    """The units of a model that says nothing else."""
    return [child for child in model.children() if any(True for _ in child.parameters())]


class Wrapped:
    """The wrapped model and its optimiser. `Wrapped(...)` is a collective, as are most methods."""

    def __init__(
        self,
        model: nn.Module,
        optimizer: OptimizerMaker,
        options: Options,
        world: World,
        *,
        units: Units = children_with_parameters,
        groups: Callable[[nn.Module], Iterable[Any]] = nn.Module.parameters,
    ) -> None:
        """Wrap the model as the options say.

        Args:
            model: bare, on the rank's device, with the same weights on every rank.
            optimizer: makes it, of parameters or groups and `lr`.
            options: parallel, impl and what goes with them; the learning rate.
            world: the ranks.
            units: of the bare model.
            groups: the optimiser's, of the wrapped model.

        Raises:
            UsageError: this combination does not exist, or not here.
        """
        self.kind = kind_of(options, world)
        self.impl = options.impl
        self.device_type, self.is_half = world.device.type, options.precision == "bfloat16"
        if options.sync_batchnorm:
            model = _with_sync_batchnorm(model, options, world)
        chosen = list(units(model))
        if options.activation_checkpointing:
            for unit in chosen:
                recompute_in_backward(unit)
        self.own_gradient = OwnGradient(model, sharded=self.kind == "fsdp")
        self.model = self._wrap(model, chosen, world)
        made: Any = optimizer
        arguments: dict[str, Any] = {"lr": scaled_lr(options, world.size)}
        if isinstance(optimizer, partial):
            made, arguments = optimizer.func, {**optimizer.keywords, **arguments}
        self.optimizer = self._optimizer(groups(self.model), made, arguments)

    def _wrap(self, model: nn.Module, units: list[nn.Module], world: World) -> nn.Module:
        if self.kind == "none":
            return model
        if self.kind != "fsdp":
            kinds = {"ours": DistributedDataParallel, "torch": TorchDDP, "minimal": MinimalDDP}
            replica: nn.Module = kinds[self.impl](model)
            return replica
        if self.impl == "ours":
            return FullyShardedDataParallel(
                model,
                auto_wrap_policy=lambda module, recurse, **_: recurse or module in units,
                sync_module_states=True,
            )
        from torch.distributed.device_mesh import init_device_mesh  # slow to import
        from torch.distributed.fsdp import fully_shard

        for tensor in (*model.parameters(), *model.buffers()):  # FSDP2 overwrites nobody's
            dist.broadcast(tensor.detach(), 0)
        mesh = init_device_mesh(world.device.type, (world.size,))
        for unit in units:
            fully_shard(unit, mesh=mesh)
        fully_shard(model, mesh=mesh)
        return model

    def _optimizer(self, params: Iterable[Any], made: Any, arguments: dict[str, Any]) -> Optimizer:
        zero: Any = ZeroRedundancyOptimizer
        if self.kind == "zero1" and self.impl == "torch":
            from torch.distributed.optim import ZeroRedundancyOptimizer as TorchZero  # slow

            zero = TorchZero
        if self.kind == "zero2":
            arguments |= {"stage": 2, "model": self.model}
        if self.kind in ("zero1", "zero2"):
            made = partial(zero, optimizer_class=made)
        optimizer: Optimizer = made(list(params), **arguments)
        return optimizer

    @contextmanager
    def microbatch(self, *, last: bool) -> Iterator[None]:
        """Forward and backward of one microbatch: only the last of a step averages gradients.

        The others just add to this rank's own, which saves their communication.
        """
        model: Any = self.model
        if self.kind == "none":
            yield
        elif self.impl == "minimal":
            yield
            if last:
                model.sync_grads()
        elif self.kind == "fsdp" and self.impl == "torch":
            model.set_requires_gradient_sync(last)
            yield
        else:
            with nullcontext() if last else model.no_sync():
                yield

    def autocast(self) -> torch.autocast:
        """Compute in the options' precision. bfloat16 has float32's range: no loss to scale."""
        return torch.autocast(self.device_type, dtype=torch.bfloat16, enabled=self.is_half)

    def clip_(self, max_norm: float) -> Tensor:
        """Scale the averaged gradient so that its norm is at most `max_norm`; the norm before.

        Where a rank has a part of the gradient only, its norm is of all ranks' parts together.
        """
        norm: Any
        if isinstance(self.model, FullyShardedDataParallel):
            norm = self.model.clip_grad_norm_(max_norm)
        elif isinstance(self.optimizer, ZeroRedundancyOptimizer):
            norm = self.optimizer.clip_grad_norm_(max_norm)
        else:
            norm = nn.utils.clip_grad_norm_(self.model.parameters(), max_norm)
        total: Tensor = norm.full_tensor() if hasattr(norm, "full_tensor") else norm  # FSDP2's
        return total

    @torch.no_grad()
    def largest_weight(self) -> Tensor:
        """Of this rank's part, without a sign, a scalar: finite, unless a weight is not."""
        parts: list[Any] = [parameter.detach() for parameter in self.model.parameters()]
        parts = [part.to_local() if hasattr(part, "to_local") else part for part in parts]
        # Few kernels for all of them, as in clipping; NaN is above all.
        return nn.utils.get_total_norm([part for part in parts if part.numel()], math.inf)

    @torch.no_grad()
    def align_buffers(self) -> None:
        """Give all ranks rank 0's, which are those that count (BatchNorm's running statistics)."""
        if self.kind != "none":
            for buffer in self.model.buffers():
                dist.broadcast(buffer, 0)


def kind_of(options: Options, world: World) -> str:
    """The value of `parallel` that holds, after a look at what exists.

    Raises:
        UsageError: this combination does not.
    """
    kind = options.parallel or ("none" if world.backend == "none" else "ddp")
    if kind == "none" and world.size > 1:
        raise UsageError(
            f"--parallel none on {world.size} ranks would train {world.size} models that "
            "know nothing of each other: use --parallel ddp, or start one process"
        )
    if kind == "zero2" and options.impl != "ours":
        raise UsageError("PyTorch has no zero2: use --impl ours, or --parallel fsdp")
    if options.impl == "minimal" and kind not in ("none", "ddp"):
        raise UsageError(f"MinimalDDP is ddp only: use --impl ours for {kind}")
    return kind


def _with_sync_batchnorm(model: nn.Module, options: Options, world: World) -> nn.Module:
    if options.impl != "torch":
        return SyncBatchNorm.convert_sync_batchnorm(model)
    if world.device.type == "cpu":
        raise UsageError("PyTorch's SyncBatchNorm needs a GPU: use --impl ours")
    converted: nn.Module = nn.SyncBatchNorm.convert_sync_batchnorm(model)
    return converted
