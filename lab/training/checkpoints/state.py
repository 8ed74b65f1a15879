"""What a model and its optimiser are made of, under names that any way of wrapping them shares.

model.NAME            a parameter or a buffer, by its name in the bare model
optimizer.NAME.KEY    an optimiser's state of a parameter
groups                the optimiser's options: learning rates and so on
"""

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from lab.errors import LabError
from lab.parallel import ZeroRedundancyOptimizer
from lab.parallel.layout import dense_stride
from lab.training.checkpoints.chunks import Chunks
from lab.training.checkpoints.manifest import Manifest, TensorEntry
from lab.training.checkpoints.places import Held, Place, Range, Whole
from lab.training.checkpoints.planners import State, packed
from lab.training.checkpoints.storage import dtype_called


class Stepped:
    """What this rank holds of an optimiser: for each of its parameters a place and a state."""

    def __init__(self, optimizer: Optimizer, held: Held) -> None:
        """Look at it.

        Raises:
            LabError: it has a parameter that is not the model's.
        """
        self.optimizer = optimizer
        inner = getattr(optimizer, "optim", None)
        self.local = inner if isinstance(inner, Optimizer) else optimizer
        """That of this rank's parameters, where torch's ZeroRedundancyOptimizer has dealt them."""
        self.kind = type(self.local).__name__
        self.groups = [
            {**group, "params": [_name_of(p, held) for p in group["params"]]}
            for group in optimizer.param_groups
        ]
        self.rows: list[tuple[str, Place, dict[str, Any]]] = []
        if isinstance(optimizer, ZeroRedundancyOptimizer):
            self.kind = optimizer.optimizer_class.__name__
            for piece, state in optimizer.piece_states():
                whole = piece.parameter
                part = Range(piece.values, whole.shape, dense_stride(whole), piece.start)
                self.rows.append((_name_of(whole, held), part, state))
            return
        for parameter in (p for group in self.local.param_groups for p in group["params"]):
            name = _name_of(parameter, held)
            place = held.parameters[name]
            if self.local is not optimizer:  # no other rank has its state
                place = Whole(parameter, everywhere=False)
            self.rows.append((name, place, self.local.state.get(parameter, {})))

    def take(self, states: Sequence[dict[str, Any]], groups: Sequence[dict[str, Any]]) -> None:
        """Go on with other states.

        Args:
            states: by row.
            groups: as `self.groups`.
        """
        merged = [
            {**mine, **loaded, "params": mine["params"]}
            for mine, loaded in zip(self.groups, groups, strict=True)
        ]
        if isinstance(self.optimizer, ZeroRedundancyOptimizer):
            pieces = [piece for piece, _ in self.optimizer.piece_states()]
            self.optimizer.load_piece_states(list(zip(pieces, states, strict=True)), merged)
            return
        numbers = {
            name: number
            for number, name in enumerate(name for group in merged for name in group["params"])
        }
        for group in merged:
            group["params"] = [numbers[name] for name in group["params"]]
        by_number = {
            numbers[name]: state
            for (name, _, _), state in zip(self.rows, states, strict=True)
            if state
        }
        self.optimizer.load_state_dict({"state": by_number, "param_groups": merged})


class TrainingState:
    """A model and its optimiser, as a checkpoint has them."""

    def __init__(self, model: nn.Module, optimizer: Optimizer | None) -> None:
        """`optimizer` None: of a model that is only to be used."""
        self.held = Held(model)
        self.stepped = None if optimizer is None else Stepped(optimizer, self.held)

    @property
    def optimizer_name(self) -> str:
        """The class of the optimiser, whatever it is wrapped in."""
        return "" if self.stepped is None else self.stepped.kind

    def to_save(self, rank: int) -> State:
        """All that this rank holds, by names. Tensors are views, not copies."""
        state: State = {
            f"model.{name}": place.chunks(place.values)
            for name, place in self.held.places.items()
            if rank == 0 or name not in self.held.buffers
        }
        state |= {f"model.{name}": packed(value) for name, value in self.held.extra.items()}
        if self.stepped is not None:
            state["groups"] = packed(self.stepped.groups)
            for name, place, row in self.stepped.rows:
                for key, value in row.items():
                    state[f"optimizer.{name}.{key}"] = _saved(place, key, value)
        return state

    def difference(self, manifest: Manifest) -> str | None:
        """In words, the first thing in which a checkpoint is of another model or optimiser."""
        saved = {
            name.removeprefix("model."): (entry.dtype, entry.shape)
            for name, entry in manifest.tensors.items()
            if name.startswith("model.")
        }
        places = self.held.places
        for name, place in places.items():
            mine = str(place.values.dtype).removeprefix("torch."), list(place.shape)
            if name not in saved:
                return f"it has no {name}, which this model has"
            if saved[name] != mine:
                return f"its {name} is {_kind(*saved[name])}, and this model's {_kind(*mine)}"
        for name in saved:
            if name not in places:
                return f"it has {name}, which this model has not"
        if self.stepped is not None and self.stepped.kind != manifest.optimizer:
            return f"its optimiser is {manifest.optimizer}, and this one {self.stepped.kind}"
        return None

    def check_groups(self, groups: Sequence[dict[str, Any]]) -> None:
        """Compare the optimiser's groups with those of a checkpoint.

        Raises:
            LabError: they have other parameters.
        """
        mine = [] if self.stepped is None else self.stepped.groups
        if [sorted(group["params"]) for group in groups] != [sorted(g["params"]) for g in mine]:
            raise LabError("the optimiser's groups have other parameters than in the checkpoint")

    def targets(self, manifest: Manifest) -> dict[str, Any]:
        """What a checkpoint is to fill: the model's own memory, new memory for the optimiser's."""
        targets: dict[str, Any] = {
            f"model.{name}": place.chunks(place.values) for name, place in self.held.places.items()
        }
        targets |= {f"model.{name}": None for name in self.held.extra}
        if self.stepped is None:
            return targets
        targets["groups"] = None
        keys = _keys(manifest)
        self._states: list[dict[str, Any]] = []
        for name, place, _ in self.stepped.rows:
            row: dict[str, Any] = {}
            for key in keys.get(name, ()):
                full = f"optimizer.{name}.{key}"
                targets[full] = None
                if full in manifest.tensors:
                    row[key], targets[full] = _target(place, key, manifest.tensors[full])
            self._states.append(row)
        return targets

    def take(self, filled: dict[str, Any], manifest: Manifest) -> None:
        """Go on with what came into the targets."""
        for name in self.held.extra:
            self.held.take_extra(name, filled[f"model.{name}"])
        if self.stepped is None:
            return
        keys = _keys(manifest)
        for (name, _, _), row in zip(self.stepped.rows, self._states, strict=True):
            for key in keys.get(name, ()):
                if key not in row:
                    row[key] = filled[f"optimizer.{name}.{key}"]
        self.stepped.take(self._states, filled["groups"])


def _name_of(parameter: Tensor, held: Held) -> str:
    if id(parameter) not in held.names:
        raise LabError(
            f"the optimiser has a parameter of {list(parameter.shape)} that is not the model's: "
            "a checkpoint names states by the model's parameters"
        )
    return held.names[id(parameter)]


def _saved(place: Place, key: str, value: Any) -> Chunks | bytes:
    """One value of a parameter's state."""
    if not isinstance(value, Tensor):
        return packed(value)
    # The count of steps is a scalar, and so is the average of a scalar parameter.
    if key != "step" and value.shape == place.values.shape:
        return place.chunks(value)
    return Chunks.of_whole(value, everywhere=isinstance(place, Whole) and place.everywhere)


def _target(place: Place, key: str, entry: TensorEntry) -> tuple[Tensor, Chunks]:
    """Memory for one value of a parameter's state, and how to fill it."""
    dtype = dtype_called(entry.dtype)
    if key != "step" and torch.Size(entry.shape) == place.shape:
        values = place.empty(dtype)
        return values, place.chunks(values)
    values = torch.empty(entry.shape, dtype=dtype)
    return values, Chunks.of_whole(values)


def _keys(manifest: Manifest) -> dict[str, list[str]]:
    """What a checkpoint has of each parameter's state."""
    keys: dict[str, list[str]] = {}
    every: Iterable[str] = (*manifest.tensors, *manifest.objects)
    for name in every:
        if name.startswith("optimizer."):
            parameter, _, key = name.removeprefix("optimizer.").rpartition(".")
            keys.setdefault(parameter, []).append(key)
    return keys


def _kind(dtype: str, shape: list[int]) -> str:
    return f"{dtype} {shape}"
