"""What the script itself sends between two optimizer steps, as far as it tells how it trains.

Gradients that are averaged by hand, parameters that are (local SGD), activations (parts of a model
on several ranks): which of them, not what is in them. What wrappers do in C++ is not seen here.
"""

import sys
import weakref
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import distributed_c10d
from torch.optim import Optimizer

from ..frames import PARALLEL
from .averages import Averages
from .counts import ranks_of
from .hooks import Hooks
from .tensors import local, norms

PUT_TOGETHER = frozenset({"all_reduce", "reduce", "gather", "all_gather", "all_gather_into_tensor"})
"""What weights can be averaged by."""
COLLECTIVES = (
    *("all_reduce", "reduce", "broadcast", "all_gather", "all_gather_into_tensor"),
    *("reduce_scatter", "reduce_scatter_tensor", "all_to_all", "all_to_all_single"),
)
POINT_TO_POINT = ("send", "recv", "isend", "irecv")
SMALL = 64
"""Elements: losses, counts and norms have no more, activations and gradients have."""


TORCH = str(Path(torch.__file__).parent)
WRAPPERS = (
    *PARALLEL,
    *(f"{TORCH}/{part}/" for part in ("nn", "distributed/fsdp", "distributed/optim")),
    f"{TORCH}/distributed/algorithms/ddp_comm_hooks/",
)
"""Whose collectives are known: gradients and parameters of DDP, FSDP, ZeRO, SyncBatchNorm."""
OPTIMIZERS = f"{TORCH}/distributed/optim/"
OWN = (str(Path(__file__).parent), distributed_c10d.__file__, f"{TORCH}/distributed/c10d_logger.py")


class Exchange:
    """Counts what is sent, by what it may be for; from one step to the next."""

    def __init__(
        self,
        hooks: Hooks,
        parameters: Callable[[], list[tuple[Optimizer, Tensor, frozenset[int]]]],
        reduces: Callable[[], bool],
        averages: Averages,
    ) -> None:
        """Listen.

        Args:
            hooks: to listen to.
            parameters: gives all optimizers', and the ranks over which a wrapper reduces the
                gradient.
            reduces: whether wrappers do so in a backward that begins now.
            averages: wants to know what is sent after a step, but for gradients.
        """
        self._recorder = hooks.recorder
        self._parameters, self._reduces = parameters, reduces
        self._averages = averages
        self._stepped: weakref.WeakSet[Optimizer] = weakref.WeakSet()
        """Those that have, since the last backward began."""
        self._are_reduced = True
        """Whether wrappers did so in the last backward."""
        self._phase = "forward"
        self._sent: dict[str, int] = {}
        """How often what has been sent, since the beginning."""
        self._at_step: tuple[dict[str, int], dict[str, int]] = {}, {}
        """The same, as of the step before and of this one."""
        self._told: dict[int, dict[str, int]] = {}
        """What of it each optimizer's records have told."""
        self._gradients: dict[int, tuple[Tensor, frozenset[int]]] | None = (
            None  # by address; None: not asked
        )
        self._reduced: set[object] = set()
        self._again: tuple[Tensor, float, dict[str, Any]] | None = None
        self._owners: dict[int, tuple[Tensor, Optimizer]] | None = None
        """Parameters by the address of their gradients, since the step; None: not asked."""
        self.late: dict[str, Any] | None = None
        """Where gradients were first put together after the step that has taken them."""
        hooks.before_backward.append(self._on_backward)
        hooks.after_backward.append(self._after_backward)
        for name in COLLECTIVES:
            self._wrap(hooks, name, self._on_collective)
        self._wrap(hooks, "gather", self._on_gather)
        self._wrap(hooks, "barrier", lambda *_: self._count("barrier"))
        for name in POINT_TO_POINT:
            self._wrap(hooks, name, self._on_point_to_point)

    @staticmethod
    def _wrap(hooks: Hooks, name: str, listener: Callable[..., None]) -> None:
        def before(*args: Any, **kwargs: Any) -> None:
            hooks.tell([listener], name, args, kwargs)

        hooks.wrap(distributed_c10d, name, before=before)
        setattr(dist, name, getattr(distributed_c10d, name))

    def stepped(self, optimizer: Optimizer) -> dict[str, Any] | None:
        """Its step begins. Where a gradient was summed that had been before, None if none was.

        With the `factor` by which that changed it.
        """
        self._at_step = self._at_step[1], dict(self._sent)
        again, self._again, self._phase = self._again, None, "forward"
        self._stepped.add(optimizer)
        self._forget()
        if again is None:
            return None
        gradient, norm, site = again
        return {**site, "factor": norms([gradient])[0] / norm if norm else 1.0}

    def take(self, optimizer: int) -> dict[str, int]:
        """What has been sent since this was asked last for that optimizer, or any has stepped.

        How often something large was sent, by phase: `forward` (before backward begins),
        `backward`, `after` (it has ended); `parameters`, `copies` (of one rank's parameters) or
        `late` (gradients) in place of `forward`; `small`, `subgroup` (with some ranks only) and
        `point_to_point` of any phase. Next to these, all of `barrier`, of gradients that one
        rank alone gets the sum of (`reduce`), of broadcasts: `from 0`, and of those of an optimizer
        that has each rank update a part of the weights and send it to the others (`updates`).
        """
        told = self._told.get(optimizer, self._at_step[0])
        self._told[optimizer] = dict(self._sent)
        return {what: n for what, count in self._sent.items() if (n := count - told.get(what, 0))}

    def _forget(self) -> None:
        self._gradients = self._owners = None
        self._reduced.clear()

    def _count(self, what: str) -> None:
        self._sent[what] = self._sent.get(what, 0) + 1

    def _on_backward(self, _: Any) -> None:
        self._phase = "backward"
        self._stepped.clear()
        self._are_reduced = self._reduces()
        self._forget()

    def _after_backward(self, _: Any) -> None:
        self._phase = "after"

    def _on_point_to_point(self, _name: str, _args: Any, _kwargs: Any) -> None:
        self._count("point_to_point")

    def _on_collective(self, name: str, args: Any, kwargs: Any) -> None:
        if not dist.is_initialized():
            return
        if wrapper := _wrapper():
            if name == "broadcast" and wrapper.startswith(OPTIMIZERS):
                self._count("updates")
            return
        tensor = args[0] if args else next(iter(kwargs.values()), None)
        if isinstance(tensor, list):
            tensor = tensor[0] if tensor else None
        if not isinstance(tensor, Tensor) or tensor.dtype == torch.uint8:  # objects, as bytes
            return
        small = tensor.numel() <= SMALL and not self._is_gradient(tensor)
        purpose = "small" if small else self._purpose(tensor)
        if name == "broadcast":
            source = args[1] if len(args) > 1 else kwargs.get("src", kwargs.get("group_src"))
            self._count(f"from {source}")
            purpose = "copies" if purpose == "parameters" else purpose
        if name == "reduce" and self._phase == "after" and self._gradient_of(tensor) is not None:
            self._count("reduce")
        self._count(purpose)
        self._after_step(name, tensor)
        if name.startswith("all_to_all"):  # as of experts; no loss is put together so
            self._count("point_to_point")
        group = kwargs.get("group")
        if isinstance(group, dist.ProcessGroup) and group.size() < dist.get_world_size():
            self._count("subgroup")
        if self._phase == "after" and name == "all_reduce" and self._again is None:
            operation = args[1] if len(args) > 1 else kwargs.get("op", dist.ReduceOp.SUM)
            if operation in (dist.ReduceOp.SUM, dist.ReduceOp.AVG):
                self._look_for_second(tensor, group)

    def _on_gather(self, name: str, args: Any, kwargs: Any) -> None:
        tensor = args[0] if args else kwargs.get("tensor")
        if isinstance(tensor, Tensor) and not is_wrappers():
            self._after_step(name, tensor)

    def _after_step(self, name: str, tensor: Tensor) -> None:
        """Hand on what may be weights that are averaged."""
        if self._phase != "forward" or name not in PUT_TOGETHER or not self._averages.want(tensor):
            return
        if self._gradient_of(tensor) not in self._stepped:  # else it is too late for it
            self._averages.sent([tensor])

    def _purpose(self, tensor: Tensor) -> str:
        """The phase; else what is known in `forward`, gradients of one size in `backward`."""
        if self._phase == "after":
            return self._phase
        known = [local(parameter) for _, parameter, _ in self._parameters()]
        size = tensor.numel()
        if self._phase == "backward":  # by hooks, one after the other
            return "after" if any(p.numel() == size for p in known) else self._phase
        address = local(tensor).data_ptr()
        owner = self._gradient_of(tensor)
        if owner in self._stepped:
            self.late = self.late or self._recorder.site()
            return "late"
        if owner is not None:
            return "after"  # put there by the script itself, for a step that is still to come
        most = bool(known) and size >= sum(p.numel() for p in known) / 2
        return "parameters" if most or any(p.data_ptr() == address for p in known) else self._phase

    def _is_gradient(self, tensor: Tensor) -> bool:
        """Whether this is a gradient, though it is no larger than what losses and counts are.

        By its place in memory; or, between backward and step, as a copy: by a shape of rows and
        columns that a parameter has as well.
        """
        for _, parameter, _ in self._parameters():
            gradient = parameter.grad
            if gradient is None or gradient.shape != tensor.shape:
                continue
            is_copy = self._phase == "after" and tensor.dim() > 1 and tensor.numel() > 1
            if is_copy or _are_at_one_place(gradient, tensor):
                return True
        return False

    def _gradient_of(self, tensor: Tensor) -> Optimizer | None:
        """Whose gradient it is, or a copy of all of its gradients; None: nobody's."""
        if self._owners is None:
            self._owners = {
                local(p.grad).data_ptr(): (p, optimizer)
                for optimizer, p, _ in self._parameters()
                if p.grad is not None
            }
        value = local(tensor)
        found = self._owners.get(value.data_ptr())
        if found is not None:  # unless it is gone, and something else in its place
            now = found[0].grad
            return found[1] if now is not None and _are_at_one_place(now, value) else None
        by_optimizer: dict[Optimizer, list[Tensor]] = {}
        for parameter, optimizer in self._owners.values():
            if parameter.grad is not None:
                by_optimizer.setdefault(optimizer, []).append(local(parameter.grad))
        for optimizer, gradients in by_optimizer.items():
            whole = value.numel() == sum(gradient.numel() for gradient in gradients)
            if whole and _begins_as(value, gradients[0]):
                return optimizer
        return None

    def _look_for_second(self, tensor: Tensor, group: Any) -> None:
        """Note the first gradient that is summed again."""
        if self._gradients is None:
            self._gradients = {
                local(parameter.grad).data_ptr(): (
                    parameter.grad,
                    ranks if self._are_reduced else frozenset(),
                )
                for _, parameter, ranks in self._parameters()
                if parameter.grad is not None
            }
        value = local(tensor)
        gradient, over = self._gradients.get(value.data_ptr()) or self._copied(value)
        key = value.data_ptr(), group
        # Over ranks of which it has one alone (replicas of what is in parts) it is the first time.
        again = len(over.intersection(ranks_of(group) or ())) > 1
        if gradient is not None and (again or key in self._reduced):
            self._again = gradient, norms([gradient])[0], self._recorder.site()
        self._reduced.add(key)

    def _copied(self, value: Tensor) -> tuple[Tensor | None, frozenset[int]]:
        """The first of the gradients that a wrapper has reduced, if it is a copy of them all."""
        assert self._gradients is not None
        reduced = [(local(gradient), over) for gradient, over in self._gradients.values() if over]
        if not reduced or value.numel() != sum(gradient.numel() for gradient, _ in reduced):
            return None, frozenset()
        return reduced[0] if _begins_as(value, reduced[0][0]) else (None, frozenset())


def _are_at_one_place(one: Tensor, other: Tensor) -> bool:
    return local(one).data_ptr() == local(other).data_ptr()


def _begins_as(value: Tensor, gradient: Tensor) -> bool:
    first = gradient.flatten()[:8]
    return torch.equal(value.flatten()[: first.numel()].to(first.dtype), first)


def is_wrappers() -> bool:
    """Whether it is not the script that called, but a wrapper of its model or optimizer."""
    return _wrapper() is not None


def _wrapper() -> str | None:
    """The file of the wrapper that called; None: it was the script."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename.startswith(OWN):
        frame = frame.f_back
    if frame is None or not frame.f_code.co_filename.startswith(WRAPPERS):
        return None
    return frame.f_code.co_filename
