"""A unit: the parameters that are gathered, used and freed together.

Each module wrapped in FullyShardedDataParallel is one, less what is wrapped inside it. It has a
flat parameter for each dtype, and one more where some of the parameters are frozen.
"""

import weakref
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from lab.parallel.flat_parameter import FlatParameter, Slot
from lab.parallel.meter import Meter

SHARDED_IN = "_fsdp_unit"
"""Attribute of a parameter that belongs to a unit, so that no other takes it."""


class Unit:
    """Switches its modules between the sharded parameters and the full ones."""

    def __init__(
        self,
        name: str,
        slots: Sequence[tuple[Slot, torch.dtype]],
        group: dist.ProcessGroup | None,
        *,
        reduce_dtype: torch.dtype | None,
        reshard_after_forward: bool,
        offload: bool,
    ) -> None:
        """Shard the parameters.

        Args:
            name: for messages.
            slots: with whole parameters, and the dtype in which each is to be computed with.
            group: the ranks that share them.
            reduce_dtype: of gradients on the wire; default that of computing.
            offload: keep the shards on the CPU.
            reshard_after_forward: False: keep the full parameters until backward has used them.
        """
        self.name = name
        self.reshard_after_forward = reshard_after_forward
        self.meter = Meter()
        kinds: dict[tuple[torch.dtype, torch.dtype, bool], list[Slot]] = {}
        for slot, compute in slots:
            parameter = slot.sharded
            setattr(parameter, SHARDED_IN, f"{slot.name} of {name}")
            kinds.setdefault((parameter.dtype, compute, parameter.requires_grad), []).append(slot)
        self.flats = [
            FlatParameter(
                members,
                group,
                compute_dtype=compute,
                reduce_dtype=reduce_dtype or compute,
                offload=offload,
                meter=self.meter,
            )
            for (_, compute, _), members in kinds.items()
        ]
        self.conductor: Any = None
        """That of the last forward."""
        self.is_whole = False
        """Modules see what `show_whole` gave them."""
        self.start_over()
        self.waiting: set[tuple[int, int]] = set()
        """(flat, slot) that have had no gradient yet in this backward."""
        self._expected = 0
        self.on_gradient: Callable[[Unit], None] | None = None
        """Called when one more has."""
        for place, flat in enumerate(self.flats):
            for number, slot in enumerate(flat.slots):
                if flat.trained:
                    slot.unsharded.register_post_accumulate_grad_hook(self._hook(place, number))

    def start_over(self) -> None:
        """A backward is over."""
        self.uses = 0
        """Forwards whose backward may still need frozen parameters."""
        self.forwards = 0
        """Since the last backward."""
        self.in_checkpoints = False
        """A reentrant checkpoint is around one of them, or inside."""
        self.recomputed = False
        """A checkpoint has called forward in this backward."""

    def share(self, meter: Meter) -> None:
        """Count at an outer unit's meter from now on."""
        self.meter = meter
        for flat in self.flats:
            flat.meter = meter

    def _hook(self, place: int, number: int) -> Callable[[Tensor], None]:
        this = weakref.ref(self)  # autograd keeps the hook, and must not keep the model by it

        def hook(_: Tensor) -> None:
            unit = this()
            assert unit is not None
            unit.flats[place].collect(number)
            unit.waiting.discard((place, number))
            assert unit.on_gradient is not None
            unit.on_gradient(unit)

        return hook

    def expect_gradients(self) -> None:
        """A backward begins."""
        self.waiting = {
            (place, number)
            for place, flat in enumerate(self.flats)
            if flat.trained
            for number, slot in enumerate(flat.slots)
            if slot.unsharded.requires_grad
        }
        self._expected = len(self.waiting)

    @property
    def share_of_gradients(self) -> float:
        """How many of the parameters have had theirs in this backward, from 0 to 1."""
        return 1 - len(self.waiting) / max(1, self._expected)

    @property
    def slots(self) -> list[Slot]:
        """Of all parameters."""
        return [slot for flat in self.flats for slot in flat.slots]

    @property
    def gathered(self) -> bool:
        """Whether the full parameters are there or on the way."""
        return all(flat.gathered for flat in self.flats)

    @property
    def gets_several(self) -> bool:
        """Whether backward may come back to it after all its parameters have got gradients."""
        return self.forwards > 1 and self.in_checkpoints

    @property
    def has_gradients(self) -> bool:
        """Whether some are collected and not sent."""
        return any(flat.collected for flat in self.flats)

    @property
    def trained(self) -> bool:
        """Whether any of its parameters gets gradients."""
        return any(flat.trained for flat in self.flats)

    @property
    def has_frozen(self) -> bool:
        """Whether a parameter gets no gradient, which could tell when backward is done with it."""
        return any(not slot.sharded.requires_grad for slot in self.slots)

    def start_gather(self) -> None:
        """Begin to fetch the full parameters. Collectives."""
        for flat in self.flats:
            flat.start_gather()

    def finish_gather(self) -> None:
        """Wait for them."""
        for flat in self.flats:
            flat.finish_gather()

    def show_full(self) -> None:
        """Let the modules see the full parameters."""
        for flat in self.flats:
            for slot in flat.slots:
                if slot.sharded.requires_grad and not flat.trained:
                    raise RuntimeError(
                        f"{slot.name} of {self.name} was unfrozen after the model had been "
                        "wrapped, and would get no gradient: wrap it afterwards"
                    )
                if slot.unsharded.requires_grad != slot.sharded.requires_grad:
                    slot.unsharded.requires_grad_(slot.sharded.requires_grad)
                for module, name in slot.owners:
                    _set_parameter(module, name, slot.unsharded)

    def show_sharded(self) -> None:
        """Let them see the sharded ones, as everybody should outside of forward and backward."""
        self.is_whole = False
        for flat in self.flats:
            for slot in flat.slots:
                for module, name in slot.owners:
                    _set_parameter(module, name, slot.sharded)

    def show_whole(self, *, gather: bool, gradients: bool = False) -> None:
        """Let them see whole parameters in their own dtype, to read and write outside of training.

        Args:
            gather: False: only this rank's part is right. True: a collective.
            gradients: gather these as well.
        """
        self.is_whole = True
        for flat in self.flats:
            if gather:
                full = flat.whole(flat.shard)
            else:
                full = flat.shard.new_zeros(flat.size * flat.length)
                full.view(flat.size, flat.length)[flat.rank] = flat.shard
            full_gradients = flat.whole(flat.shard_of_gradients()) if gradients else None
            for slot in flat.slots:
                needs = slot.sharded.requires_grad
                parameter = nn.Parameter(slot.view(full), requires_grad=needs)
                if full_gradients is not None and slot.sharded.grad is not None:
                    parameter.grad = slot.view(full_gradients)
                for module, name in slot.owners:
                    _set_parameter(module, name, parameter)

    def write_back(self) -> None:
        """Take this rank's part of what the modules hold as whole parameters."""
        for flat in self.flats:
            for number, slot in enumerate(flat.slots):
                module, name = slot.owners[0]
                whole = module._parameters[name]
                assert whole is not None
                flat.write_back(number, whole)

    def free(self) -> None:
        """Sharded again."""
        self.show_sharded()
        for flat in self.flats:
            flat.free()

    def start_reduce(self) -> None:
        """Begin to average the gradients. Collectives."""
        for flat in self.flats:
            if flat.trained:
                flat.start_reduce()

    def go_on(self, share: float) -> None:
        """Drive what `start_reduce` began, at a share of the time until `finish_reduce`."""
        for flat in self.flats:
            flat.go_on(share)

    def finish_reduce(self) -> None:
        """Wait, and put them where the optimiser looks."""
        for flat in self.flats:
            if flat.trained:
                flat.finish_reduce()

    def drop_gradients(self) -> None:
        """Forget what was collected or is under way."""
        for flat in self.flats:
            flat.drop_gradients()


def device_of(units: Iterable[Unit]) -> torch.device:
    """Where they compute, and where the backend's messages are."""
    return next((flat.device for unit in units for flat in unit.flats), torch.device("cpu"))


def _set_parameter(module: nn.Module, name: str, parameter: nn.Parameter) -> None:
    if type(module).__setattr__ is nn.Module.__setattr__:
        module._parameters[name] = parameter  # without the checks, which cost more than the rest
    else:  # nn.LSTM and its like keep a list of their own
        setattr(module, name, parameter)
