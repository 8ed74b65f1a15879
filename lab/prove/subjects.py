"""What is under proof: a model and its optimiser, spread over ranks in one of many ways.

Whatever lies where, a subject can give its gradients, parameters and optimiser states as whole
tensors, laid out as those of the bare model, so that they can be compared with one process.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
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
from lab.prove.memory import storage_bytes
from lab.prove.recipe import Recipe

States = dict[str, Tensor]
"""Of an optimiser, by name: `exp_avg` of all parameters, [P]."""


Held = tuple[int, int, int]
"""Bytes of parameters, gradients and optimiser states."""


class Subject:
    """A bare model in one process; the other kinds of subject differ from it."""

    def __init__(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        self.model = model
        self.optimizer = optimizer

    def trained(self) -> list[nn.Parameter]:
        """Parameters with gradients: all but the frozen ones."""
        return [parameter for parameter in self.model.parameters() if parameter.requires_grad]

    def accumulating(self) -> AbstractContextManager[Any]:
        """Around forward and backward of all microbatches of a step but the last."""
        return nullcontext()

    def finish_backward(self) -> None:
        """After the last microbatch."""

    def gradients(self) -> Tensor:
        """[P] on the CPU, as the optimiser gets them. A collective, as the next two."""
        return flat(map(gradient_of, self.trained()))

    def parameters(self) -> Tensor:
        """[P] on the CPU."""
        return flat(self.model.parameters())

    def states(self) -> States | None:
        """The optimiser's; None on ranks that get to know only their own part."""
        return _joined([self.optimizer.state[parameter] for parameter in self.trained()])

    def close(self) -> None:
        """At the end."""

    def unsharded_bytes(self) -> int | None:
        """The most of whole parameters beside shards so far; None where that is not counted."""
        return None

    def held(self) -> Held:
        """What this rank has in memory."""
        parameters = list(self.model.parameters())
        gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
        states = _elementwise(self.optimizer.state)
        return storage_bytes(parameters), storage_bytes(gradients), storage_bytes(states)


class Minimal(Subject):
    """MinimalDDP says when it averages."""

    def finish_backward(self) -> None:
        """Average."""
        assert isinstance(self.model, MinimalDDP)
        self.model.sync_grads()


class DataParallel(Subject):
    """DDP, ours or torch's."""

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        hierarchical: HierarchicalAllReduce | None = None,
    ) -> None:
        super().__init__(model, optimizer)
        self.hierarchical = hierarchical

    def close(self) -> None:
        """Give shared memory back."""
        if self.hierarchical is not None:
            self.hierarchical.close()

    def accumulating(self) -> AbstractContextManager[Any]:
        """Its own."""
        assert isinstance(self.model, DistributedDataParallel | TorchDDP)
        return self.model.no_sync()


class Zero(DataParallel):
    """DDP with ZeRO, ours or torch's."""

    optimizer: Any

    def gradients(self) -> Tensor:
        """In stage 2 gathered."""
        if isinstance(self.optimizer, ZeroRedundancyOptimizer):
            gradients = self.optimizer.whole_gradients()
            return flat(gradient for gradient in gradients if gradient is not None)
        return super().gradients()

    def states(self) -> States | None:
        """On rank 0, where they are collected."""
        self.optimizer.consolidate_state_dict(to=0)
        if dist.get_rank() != 0:
            return None
        states = self.optimizer.state_dict()["state"]
        return _joined([states[number] for number in sorted(states)])

    def held(self) -> Held:
        """Of states, and in stage 2 of gradients, this rank's part."""
        parameters, gradients, _ = super().held()
        if isinstance(self.optimizer, ZeroRedundancyOptimizer):
            gradients, inner = self.optimizer.gradient_bytes(), self.optimizer._optimizer
            assert inner is not None
            return parameters, gradients, storage_bytes(_elementwise(inner.state))
        return parameters, gradients, storage_bytes(_elementwise(self.optimizer.optim.state))


class Sharded(Subject, ABC):
    """Some kind of FSDP."""

    @abstractmethod
    def whole_state(self) -> dict[str, Tensor]:
        """The bare model's state_dict, on every rank. A collective, as the next."""

    @abstractmethod
    def load_whole_state(self, state: dict[str, Tensor]) -> None:
        """Take this rank's shards of it."""


class TorchFsdp(Sharded):
    """FSDP2, whose parameters, gradients and states are DTensors."""

    model: Any

    def whole_state(self) -> dict[str, Tensor]:
        """Gathered."""
        return {name: _whole(value) for name, value in self.model.state_dict().items()}

    def load_whole_state(self, state: dict[str, Tensor]) -> None:
        """Cut."""
        from torch.distributed.tensor import distribute_tensor  # slow to import

        self.model.load_state_dict(
            {
                name: distribute_tensor(state[name], value.device_mesh, value.placements)
                for name, value in self.model.state_dict().items()
            }
        )

    @contextmanager
    def accumulating(self) -> Iterator[None]:
        """Gradients stay whole until the last microbatch."""
        self.model.set_requires_gradient_sync(False)
        try:
            yield
        finally:
            self.model.set_requires_gradient_sync(True)

    def gradients(self) -> Tensor:
        """Gathered."""
        return flat(_whole(gradient_of(parameter)) for parameter in self.trained())

    def parameters(self) -> Tensor:
        """Gathered."""
        return flat(map(_whole, self.model.parameters()))

    def states(self) -> States | None:
        """Gathered."""
        rows = [self.optimizer.state[parameter] for parameter in self.trained()]
        return _joined([{name: _whole(value) for name, value in row.items()} for row in rows])


class OurFsdp(Sharded):
    """lab.parallel's, whose parameters, gradients and states are flat parts of the whole ones."""

    model: FullyShardedDataParallel

    def accumulating(self) -> AbstractContextManager[Any]:
        """Its own."""
        return self.model.no_sync()

    def gradients(self) -> Tensor:
        """Gathered."""
        with self.model.summon_full_params(self.model, writeback=False, with_grads=True):
            return super().gradients()

    def parameters(self) -> Tensor:
        """Gathered."""
        with self.model.summon_full_params(self.model, writeback=False):
            return super().parameters()

    def states(self) -> States | None:
        """Gathered."""
        states = self.model.optim_state_dict(self.model, self.optimizer)["state"]
        names = [name for name, p in self.model.named_parameters() if p.requires_grad]
        return _joined([states[name] for name in names])

    def unsharded_bytes(self) -> int | None:
        """By its own count."""
        return self.model.meter.parameters.peak

    def whole_state(self) -> dict[str, Tensor]:
        """Gathered."""
        state: dict[str, Tensor] = self.model.state_dict()
        return state

    def load_whole_state(self, state: dict[str, Tensor]) -> None:
        """Cut."""
        self.model.load_state_dict(state)


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


def flat(tensors: Iterable[Tensor]) -> Tensor:
    """All elements one after another, [P], on the CPU."""
    return torch.cat([tensor.detach().flatten() for tensor in tensors]).cpu()


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
    hooks = {
        "fp16": default_hooks.fp16_compress_hook,
        "bf16": default_hooks.bf16_compress_hook,
    }
    if recipe.comm_hook != "none":
        replica.register_comm_hook(None, hooks[recipe.comm_hook])
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


def gradient_of(parameter: Tensor) -> Tensor:
    assert parameter.grad is not None
    return parameter.grad


def _whole(tensor: Tensor) -> Tensor:
    full_tensor: Any = getattr(tensor, "full_tensor", None)
    return tensor if full_tensor is None else full_tensor()


def _joined(states: list[Mapping[str, Tensor]]) -> States:
    names = [name for name, value in states[0].items() if _is_elementwise(value)]
    return {name: flat(state[name] for state in states) for name in names}


def _elementwise(states: Mapping[Tensor, Mapping[str, Tensor]]) -> list[Tensor]:
    rows = states.values()
    return [value for state in rows for value in state.values() if _is_elementwise(value)]


def _is_elementwise(value: Any) -> bool:
    """Whether it has a number for each of a parameter's: the count of steps has not."""
    return isinstance(value, Tensor) and value.dim() > 0
