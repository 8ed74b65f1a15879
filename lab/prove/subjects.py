"""What is under proof: a model and its optimiser, spread over ranks in one of many ways.

Whatever lies where, a subject can give its gradients, parameters and optimiser states as whole
tensors, laid out as those of the bare model, so that they can be compared with one process.
"""

from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel as TorchDDP

from lab.parallel import (
    DistributedDataParallel,
    HierarchicalAllReduce,
    MinimalDDP,
    ZeroRedundancyOptimizer,
)
from lab.prove.memory import storage_bytes

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
        return joined([self.optimizer.state[parameter] for parameter in self.trained()])

    def close(self) -> None:
        """At the end."""

    def unsharded_bytes(self) -> int | None:
        """The most of whole parameters beside shards so far; None where that is not counted."""
        return None

    def held(self) -> Held:
        """What this rank has in memory."""
        parameters = list(self.model.parameters())
        gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
        states = elementwise(self.optimizer.state)
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
        return joined([states[number] for number in sorted(states)])

    def held(self) -> Held:
        """Of states, and in stage 2 of gradients, this rank's part."""
        parameters, gradients, _ = super().held()
        if isinstance(self.optimizer, ZeroRedundancyOptimizer):
            gradients, inner = self.optimizer.gradient_bytes(), self.optimizer._optimizer
            assert inner is not None
            return parameters, gradients, storage_bytes(elementwise(inner.state))
        return parameters, gradients, storage_bytes(elementwise(self.optimizer.optim.state))


def flat(tensors: Iterable[Tensor]) -> Tensor:
    """All elements one after another, [P], on the CPU."""
    return torch.cat([tensor.detach().flatten() for tensor in tensors]).cpu()


def gradient_of(parameter: Tensor) -> Tensor:
    assert parameter.grad is not None
    return parameter.grad


def joined(states: list[Mapping[str, Tensor]]) -> States:
    names = [name for name, value in states[0].items() if _iselementwise(value)]
    return {name: flat(state[name] for state in states) for name in names}


def elementwise(states: Mapping[Tensor, Mapping[str, Tensor]]) -> list[Tensor]:
    rows = states.values()
    return [value for state in rows for value in state.values() if _iselementwise(value)]


def _iselementwise(value: Any) -> bool:
    """Whether it has a number for each of a parameter's: the count of steps has not."""
    return isinstance(value, Tensor) and value.dim() > 0
