"""Fully sharded data parallelism from scratch.

Read `minimal.py` (its `fsdp_round_trip_sketch`) and `flat_parameter.py` first. Each rank keeps one
N-th of parameters, gradients and the optimiser's states. A unit, mostly a block of the model, gets
its full parameters from the other ranks just before it computes, and gives them up right after.

    model = FullyShardedDataParallel(model, auto_wrap_policy=ModuleWrapPolicy({Block}))
    optimizer = torch.optim.AdamW(model.parameters())   # after wrapping: of this rank's parts
"""

from typing import Any

import torch.distributed as dist
from torch import nn

from lab.parallel.flat_parameter import Slot
from lab.parallel.fsdp_conductor import Conductor
from lab.parallel.fsdp_unit import Unit


class FullyShardedDataParallel(nn.Module):
    """First version: FULL_SHARD."""

    def __init__(self, module: nn.Module, process_group: dist.ProcessGroup | None = None) -> None:
        """Shard."""
        super().__init__()
        self._fsdp_wrapped_module = module
        self.process_group = process_group
        inner = [m for m in module.modules() if isinstance(m, FullyShardedDataParallel)]
        taken = {id(p) for m in inner for p in m.parameters()}
        slots: dict[int, Slot] = {}
        for prefix, owner in module.named_modules():
            for name, parameter in owner._parameters.items():
                if parameter is None or id(parameter) in taken:
                    continue
                if id(parameter) in slots:
                    slots[id(parameter)].owners.append((owner, name))
                    continue
                slots[id(parameter)] = Slot(
                    name=f"{prefix}.{name}" if prefix else name,
                    owners=[(owner, name)],
                    shape=parameter.shape,
                    stride=parameter.stride(),
                    start=0,
                    sharded=parameter,
                )
        self._unit = Unit(
            type(module).__name__,
            [(slot, slot.sharded.dtype) for slot in slots.values()],
            process_group,
            reduce_dtype=None,
            reshard_after_forward=True,
        )
        for m in inner:
            m._unit.share(self._unit.meter)
        self._own = Conductor(
            [self._unit, *(m._unit for m in inner)],
            process_group,
            prefetch_forward=True,
            prefetch_backward=True,
        )

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """The module's own forward."""
        conductor = self._unit.conductor
        if conductor is not None and conductor.busy:
            return self._forward(conductor, args, kwargs)
        with self._own.forward(self.training):
            return self._forward(self._own, args, kwargs)

    def _forward(self, conductor: Conductor, args: Any, kwargs: Any) -> Any:
        conductor.before_forward(self._unit)
        outputs = self._fsdp_wrapped_module(*args, **kwargs)
        conductor.after_forward(self._unit, (args, kwargs), outputs)
        return outputs


FSDP = FullyShardedDataParallel
