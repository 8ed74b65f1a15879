"""Subjects whose parameters are spread over the ranks: FSDP, ours and torch's."""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from torch import Tensor

from lab.parallel import FullyShardedDataParallel
from lab.prove.subjects import States, Subject, flat, gradient_of, joined


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
        return joined([{name: _whole(value) for name, value in row.items()} for row in rows])


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
        return joined([states[name] for name in names])

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


def _whole(tensor: Tensor) -> Tensor:
    full_tensor: Any = getattr(tensor, "full_tensor", None)
    return tensor if full_tensor is None else full_tensor()
