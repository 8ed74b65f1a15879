"""The conductor: when units are gathered, freed and reduced, in one forward and backward.

    forward    gather a unit, start with the next one, compute, free
    backward   gather a unit, start with the next one, compute its gradients, free, reduce

The unit whose forward is called first has the conductor of all units inside it. Its own parameters
are in use all the while, so they are not freed between forward and backward.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd import Variable

from lab.parallel.fsdp_order import Agreement, Order, Queue, Reductions
from lab.parallel.fsdp_unit import Unit
from lab.parallel.graph import tensors_in


class Conductor:
    """Of an outermost unit and all inside it."""

    def __init__(
        self,
        units: Sequence[Unit],
        group: dist.ProcessGroup | None,
        *,
        prefetch_forward: bool,
        prefetch_backward: str | None,
    ) -> None:
        """The outermost first, then those inside in order of registration."""
        self.units = units
        self.outermost = units[0]
        self.sync_gradients = True
        self._group = group
        self._prefetch_forward = prefetch_forward
        self._prefetch_backward = prefetch_backward
        self._orders: dict[Any, Order] = {}
        self._gathers: Queue | Agreement | None = None
        self._reductions: Reductions | None = None
        self._in_forward = False
        self._in_backward = False
        self._begun_with_grad = False
        self._sync = True
        self._any_gradient = False

    @property
    def busy(self) -> bool:
        """Whether a forward now is a part of this conductor's forward or backward."""
        return self._in_forward or (self._in_backward and _inside_backward())

    # Forward.

    @contextmanager
    def forward(self, training: bool) -> Iterator[None]:
        """The outermost forward."""
        if self._in_backward:  # an exception ended it
            self.reset()
        mode = training, torch.is_grad_enabled()
        for unit in self.units:
            unit.conductor = self
            unit.on_gradient = self._gradient_came
            unit.free()
        order = self._orders.get(mode)
        self._gathers = Queue(order.forward) if order else Agreement(self.units, self._group)
        self._repeated = order.repeated if order else frozenset()
        self._begun_with_grad = torch.is_grad_enabled()
        if self._begun_with_grad:
            self._sync = self.sync_gradients
        self._in_forward = True
        try:
            yield
            self._gathers.finish()
            if isinstance(self._gathers, Agreement):
                order = self._gathers.order()
                self._orders[mode] = order
        except BaseException:
            self.reset()
            raise
        assert order is not None
        if self._begun_with_grad:
            self._backward_order = order.backward
        self._in_forward = False
        for unit in self.units:
            if not (self._begun_with_grad and self._stays_for_backward(unit)):
                unit.free()

    def _stays_for_backward(self, unit: Unit) -> bool:
        return unit is self.outermost or not unit.reshard_after_forward

    @contextmanager
    def unit_forward(self, unit: Unit) -> Iterator[None]:
        """The forward of one unit: its full parameters inside, and the next ones on the way."""
        assert self._gathers is not None
        self._gathers.need(unit)
        unit.show_full()
        if self._in_forward and self._prefetch_forward:
            self._gathers.prefetch()
        try:
            yield
        finally:
            # Where a checkpoint recomputes it in backward, its gradients come next.
            if self._in_forward:
                self._after_forward(unit)

    def _after_forward(self, unit: Unit) -> None:
        if self._is_freed_after_forward(unit):
            unit.free()
        else:
            unit.show_sharded()

    def _is_freed_after_forward(self, unit: Unit) -> bool:
        kept = unit is self.outermost or unit in self._repeated
        return unit.reshard_after_forward and not kept

    def hook_outputs(self, unit: Unit, inputs: Any, outputs: Any) -> None:
        """Have backward tell when it comes to a unit, and when it is done with it."""
        if not torch.is_grad_enabled():
            return
        for tensor in tensors_in(outputs):
            if tensor.requires_grad and tensor.grad_fn is not None:
                tensor.register_hook(lambda _: self._before_backward(unit))
        if unit.has_frozen:
            # Gradients of the others do not tell when backward is done with the frozen.
            wanting = [tensor for tensor in tensors_in(inputs) if tensor.requires_grad]
            unit.uses += 1
            if wanting:

                def used(_: Sequence[Tensor | None]) -> None:
                    unit.uses -= 1
                    self._free_if_done(unit)

                torch.autograd.graph.register_multi_grad_hook(wanting, used)

    # Backward.

    def _begin_backward(self) -> None:
        if self._in_backward:
            return
        self._in_backward = True
        self._any_gradient = False
        # Reentrant checkpoints run backwards inside the backward; autograd calls this at the end of
        # the one during which it is queued, and the outermost's outputs queue it first.
        Variable._execution_engine.queue_callback(self._finish_backward)
        for unit in self.units:
            unit.expect_gradients()
        self._gathers = Queue(self._backward_order)
        self._reductions = Reductions(unit for unit in self._backward_order if unit.trained)

    def _before_backward(self, unit: Unit) -> None:
        if torch.is_grad_enabled():
            raise RuntimeError(
                "backward with create_graph=True needs the full parameters once more, later, and "
                "here they are freed: second derivatives are not supported"
            )
        self._begin_backward()
        assert self._gathers is not None
        self._gathers.need(unit)
        unit.show_full()
        if self._prefetch_backward == "BACKWARD_PRE":
            self._gathers.prefetch()

    def _gradient_came(self, unit: Unit) -> None:
        self._begin_backward()
        assert self._gathers is not None
        assert self._reductions is not None
        self._any_gradient = True
        if self._sync and self._reductions.is_begun(unit):
            raise RuntimeError(
                f"{unit.name} got a gradient after its gradients had been sent: a module used in "
                "two reentrant checkpoints does that; checkpoint with use_reentrant=False"
            )
        if unit.waiting:
            return
        self._free_if_done(unit)
        if self._prefetch_backward == "BACKWARD_POST":
            self._gathers.prefetch()
        if self._sync:
            self._reductions.ready(unit)

    def _free_if_done(self, unit: Unit) -> None:
        if not unit.waiting and not (unit.has_frozen and unit.uses):
            unit.free()

    def _finish_backward(self) -> None:
        assert self._gathers is not None
        assert self._reductions is not None
        self._gathers.finish()
        for unit in self.units:
            unit.free()
            unit.uses = 0
        # Otherwise it was torch.autograd.grad, which leaves `grad` alone.
        if self._sync and self._any_gradient:
            self._reductions.finish()
        self._in_backward = False

    def reset(self) -> None:
        """After an exception: sharded, nothing under way, what was collected forgotten."""
        self._in_forward = self._in_backward = False
        for unit in self.units:
            unit.free()
            unit.drop_gradients()
            unit.uses = 0


def _inside_backward() -> bool:
    return torch._C._current_graph_task_id() != -1
