"""The conductor: when units are gathered, freed and reduced, in one forward and backward.

    forward    gather a unit, begin with the next one, compute, free
    backward   gather a unit, begin with the next one, compute its gradients, free, reduce

The unit whose forward is called first conducts all units inside it. Its own parameters are in use
all the while, so they are not freed between forward and backward.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd import Variable

from lab.parallel.fsdp_order import Agreement, Order, Program, is_around
from lab.parallel.fsdp_unit import Unit, device_of
from lab.parallel.graph import tensors_in


class Conductor:
    """Of an outermost unit and all inside it."""

    def __init__(
        self,
        units: Sequence[Unit],
        parents: Mapping[Unit, Unit],
        group: dist.ProcessGroup | None,
        *,
        forward_prefetch: bool,
        backward_prefetch: str | None,
    ) -> None:
        """Nothing is claimed before a forward.

        Args:
            units: the outermost first, then those inside in order of registration.
            parents: the unit around each but the outermost.
            group: the ranks.
            forward_prefetch: gather the next unit while one computes.
            backward_prefetch: BACKWARD_PRE, BACKWARD_POST or None.
        """
        self.units = units
        self.outermost = units[0]
        self.sync_gradients = True
        """False inside `no_sync`."""
        self._parents = parents
        self._group = group
        self._forward_prefetch = forward_prefetch
        self._backward_prefetch = backward_prefetch
        self._orders: dict[tuple[bool, bool], Order] = {}
        """By mode: whether in training, and with gradients."""
        self._backward_order: Order | None = None
        self._collectives: Agreement | Program | None = None
        self._in_forward = False
        self._in_backward = False
        self._with_grad = False
        self._sync = True
        self._backward_id = -1
        self._maybe_done: list[Unit] = []

    @property
    def busy(self) -> bool:
        """Whether a forward now is a part of this conductor's forward or backward."""
        return self._in_forward or (self._in_backward and _backward_id() != -1)

    # Forward.

    @contextmanager
    def forward(self, training: bool) -> Iterator[None]:
        """The outermost forward."""
        if self._in_backward:  # an exception ended it
            self.reset()
        if any(unit.is_whole for unit in self.units):
            raise RuntimeError("forward gathers by itself: call it outside summon_full_params")
        for unit in self.units:
            unit.conductor = self
            unit.on_gradient = self._gradient_came
            unit.free()
        self._with_grad = torch.is_grad_enabled()
        if self._with_grad:
            self._sync = self.sync_gradients
        mode = training, self._with_grad
        order = self._orders.get(mode)
        self._repeated = order.repeated if order else frozenset()
        agreement = Agreement(self.units, self._parents, self._group)
        self._collectives = Program(order.forward()) if order else agreement
        self._in_forward = True
        try:
            yield
            self._collectives.finish()
        except BaseException:
            self.reset()
            raise
        self._in_forward = False
        if order is None:
            order = self._orders[mode] = agreement.order()
        if self._with_grad:
            self._backward_order = order
        for unit in self.units:
            stays = unit is self.outermost or not unit.reshard_after_forward
            if not (self._with_grad and stays):
                unit.free()

    @contextmanager
    def unit_forward(self, unit: Unit) -> Iterator[None]:
        """The forward of one unit: its full parameters inside, and the next ones on the way."""
        assert self._collectives is not None
        if not self._in_forward:
            # A checkpoint computes it once more in backward. Its gradients come next.
            unit.recomputed = True
            self._arrive(unit)
            yield
            return
        if self._with_grad:
            unit.forwards += 1
            unit.in_checkpoints |= not torch.is_grad_enabled()
        self._collectives.need(unit)
        unit.show_full()
        if self._forward_prefetch:
            self._collectives.prefetch()
        try:
            yield
        finally:
            unit.show_sharded()
            kept = unit is self.outermost or unit in self._repeated
            if unit.reshard_after_forward and not kept:
                unit.free()

    def hook_outputs(self, unit: Unit, inputs: Any, outputs: Any) -> None:
        """Have backward tell when it comes to a unit, and when it is done with frozen ones."""
        if not torch.is_grad_enabled():
            return
        for tensor in tensors_in(outputs):
            if tensor.requires_grad and tensor.grad_fn is not None:
                tensor.register_hook(lambda _: self._arrive(unit))
        if unit.has_frozen:
            # Gradients of the others do not tell when backward is done with these.
            unit.uses += 1
            wanting = [tensor for tensor in tensors_in(inputs) if tensor.requires_grad]

            def used(_: Sequence[Tensor | None]) -> None:
                unit.uses -= 1
                self._free_if_done(unit)

            if wanting:
                torch.autograd.graph.register_multi_grad_hook(wanting, used)

    # Backward.

    def _begin_backward(self) -> None:
        if self._in_backward:
            return
        assert self._backward_order is not None
        self._in_backward = True
        self._backward_id = _backward_id()
        # Reentrant checkpoints run backwards inside the backward; autograd calls this at the end of
        # the one during which it is queued, and the outermost's outputs queue it first.
        Variable._execution_engine.queue_callback(self._finish_backward)
        for unit in self.units:
            unit.expect_gradients()
        self._collectives = Program(
            self._backward_order.backward(
                reduce=self._sync, prefetch=self._backward_prefetch is not None
            )
        )

    def _arrive(self, unit: Unit) -> None:
        """Backward comes to a unit."""
        if _backward_id() != -1 and torch.is_grad_enabled() and not unit.recomputed:
            raise RuntimeError(
                "backward with create_graph=True would need the full parameters once more, later, "
                "and here they are freed: second derivatives are not supported"
            )
        self._begin_backward()
        left = [other for other in self._maybe_done if not is_around(self._parents, other, unit)]
        for other in left:
            self._maybe_done.remove(other)
            self._done(other)
        assert self._collectives is not None
        self._collectives.need(unit)
        unit.show_full()
        if self._backward_prefetch == "BACKWARD_PRE":
            self._collectives.prefetch()

    def _gradient_came(self, unit: Unit) -> None:
        self._begin_backward()
        in_checkpoint = _backward_id() != self._backward_id
        unit.in_checkpoints |= in_checkpoint
        assert isinstance(self._collectives, Program)
        self._collectives.go_on(unit.share_of_gradients)
        if unit.waiting:
            return
        if in_checkpoint and not unit.recomputed:
            # From a reentrant checkpoint inside the unit, and there may be more of these.
            if unit not in self._maybe_done:
                self._maybe_done.append(unit)
        else:
            self._done(unit)

    def _done(self, unit: Unit) -> None:
        """All gradients of a unit are there. What comes nevertheless is sent at the end."""
        assert isinstance(self._collectives, Program)
        if unit.gets_several:
            return
        self._free_if_done(unit)
        if self._backward_prefetch == "BACKWARD_POST":
            self._collectives.prefetch()
        if self._sync:
            self._collectives.ready(unit)

    def _free_if_done(self, unit: Unit) -> None:
        if not unit.waiting and not unit.uses and not unit.gets_several:
            unit.free()

    def _finish_backward(self) -> None:
        assert isinstance(self._collectives, Program)
        self._collectives.finish()
        for unit in self.units:
            unit.free()
            unit.start_over()
        if self._sync:
            self._reduce_late()
        self._maybe_done = []
        self._in_backward = False

    def _reduce_late(self) -> None:
        """Gradients that came after their unit's had been sent, on any rank."""
        flags = [unit.has_gradients for unit in self.units]
        late = torch.tensor(flags, dtype=torch.uint8, device=device_of(self.units))
        dist.all_reduce(late, op=dist.ReduceOp.MAX, group=self._group)
        for unit, is_late in zip(self.units, late.tolist(), strict=True):
            if is_late:
                unit.start_reduce()
                unit.finish_reduce()

    def reset(self) -> None:
        """After an exception: sharded, nothing under way, what was collected forgotten."""
        self._in_forward = self._in_backward = False
        self._maybe_done = []
        for unit in self.units:
            unit.free()
            unit.drop_gradients()
            unit.start_over()


def _backward_id() -> int:
    """Which of the backwards under way this is called from; -1: none."""
    return torch._C._current_graph_task_id()
