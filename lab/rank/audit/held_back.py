"""Gradients that FSDP2 has not reduced when a step comes: its way to leave out the exchange.

`set_requires_gradient_sync(False)` has each rank keep the gradients of a backward, for microbatches
of which the last one reduces all. What is still kept at a step is not in it.
"""

import sys
from collections.abc import Iterator, Sequence
from typing import Any

from torch import Tensor

from ..imports import after_import
from .hooks import Hooks
from .models import Models, Site

FSDP2 = "torch.distributed.fsdp"


class HeldBack:
    """Looks for them at steps of optimizers that hold FSDP's parameters."""

    def __init__(self, hooks: Hooks, models: Models) -> None:
        self._hooks, self._models = hooks, models
        self._site: Site | None = None
        """Where the exchange was last left out."""
        self._told: set[int] = set()
        after_import(FSDP2, self._watch)

    def _watch(self) -> None:
        kind = getattr(sys.modules[FSDP2], "FSDPModule", None)  # not in older versions of torch
        if kind is not None:
            self._hooks.wrap(kind, "set_requires_gradient_sync", before=self._on_switch)

    def _on_switch(self, _: Any, requires_gradient_sync: bool, **__: Any) -> None:
        if not requires_gradient_sync:
            self._site = self._hooks.recorder.site()

    def stepping(self, optimizer: int, count: int, parameters: Sequence[Tensor]) -> None:
        """An optimizer steps its count-th time."""
        if self._site is None or optimizer in self._told:
            return
        own = {id(parameter) for parameter in parameters}
        if any(id(one.sharded_param) in own and _keeps(one) for one in self._shards()):
            self._told.add(optimizer)
            self._hooks.recorder.record("held-back", optimizer=optimizer, count=count, **self._site)

    def _shards(self) -> Iterator[Any]:
        """FSDP's parameters: its own objects, which torch does not document."""
        kind = sys.modules[FSDP2].FSDPModule
        for module in self._models.all():
            if isinstance(module, kind):
                state: Any = module._get_fsdp_state()
                groups = getattr(state, "_fsdp_param_groups", None)
                for group in groups if groups is not None else [state._fsdp_param_group]:
                    yield from group.fsdp_params if group is not None else ()


def _keeps(shard: Any) -> bool:
    """Whether a backward's gradient of the whole is there, not reduced."""
    whole = getattr(shard, "_unsharded_param", None)
    return shard.unsharded_accumulated_grad is not None or (
        whole is not None and whole.grad is not None
    )
