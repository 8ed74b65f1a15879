"""Whether gradients have come when the optimizer takes them: `all_reduce(..., async_op=True)`."""

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import distributed_c10d

from .counts import ranks_of
from .exchange import is_wrappers
from .hooks import Hooks
from .models import Site
from .tensors import local

WAITS = ("wait", "get_future", "synchronize", "block_current_stream")
"""Of a handle: who calls one of them takes care."""
KEPT = 4096
"""Handles, which keep their tensors, at most."""


@dataclass
class Sent:
    """An all-reduce that nobody has waited for so far."""

    work: dist.Work
    address: int
    """Of the tensor."""
    group: dist.ProcessGroup
    site: Site


class Waits:
    """Keeps the handles of all-reduces until somebody waits for them, or a step takes the tensors.

    At the longest until the next backward begins.
    """

    def __init__(self, hooks: Hooks) -> None:
        self._recorder = hooks.recorder
        self._sent: dict[int, Sent] = {}
        """By the identity of the handle."""
        self._said: set[tuple[Any, Any]] = set()
        if not dist.is_available():
            return
        hooks.before_backward.append(lambda _: self._sent.clear())
        all_reduce = distributed_c10d.all_reduce

        @functools.wraps(all_reduce)
        def reduced(*args: Any, **kwargs: Any) -> Any:
            work = all_reduce(*args, **kwargs)
            if isinstance(work, dist.Work) and not torch.compiler.is_compiling():
                hooks.tell([self._on_sent], work, args, kwargs)
            return work

        distributed_c10d.all_reduce = dist.all_reduce = reduced
        for name in WAITS:
            if hasattr(dist.Work, name):
                hooks.wrap(dist.Work, name, after=self._on_wait)
        hooks.wrap(distributed_c10d, "barrier", after=lambda *_, **__: self._sent.clear())
        dist.barrier = distributed_c10d.barrier

    def stepping(self, count: int, parameters: Sequence[Tensor]) -> bool:
        """A step takes these parameters' gradients; whether nobody has waited for some of them."""
        if not self._sent:
            return False
        gradients = {local(p.grad).data_ptr() for p in parameters if p.grad is not None}
        sent = {key: one for key, one in self._sent.items() if one.address in gradients}
        if not sent:
            return False  # another optimizer's, perhaps
        under_way = sum(not one.work.is_completed() for one in sent.values())
        site, group = next((one.site, one.group) for one in sent.values())
        for key in sent:
            del self._sent[key]
        if _is_nccl(group) and not under_way:
            return False  # the script may have waited for the device
        place = site["file"], site["line"]
        if place not in self._said:
            self._said.add(place)
            self._recorder.record(
                "unwaited", count=count, all=len(sent), under_way=under_way, **site
            )
        return True

    def _on_sent(self, work: dist.Work, args: Any, kwargs: Any) -> None:
        tensor = args[0] if args else kwargs.get("tensor")
        if not isinstance(tensor, Tensor) or is_wrappers():
            return
        group = (args[2] if len(args) > 2 else kwargs.get("group")) or dist.group.WORLD
        if isinstance(group, dist.ProcessGroup):
            address = local(tensor).data_ptr()
            if len(self._sent) >= KEPT:  # no gradients, most likely: nobody trains
                self._sent.clear()
            self._sent[id(work)] = Sent(work, address, group, self._recorder.site())

    def _on_wait(self, work: dist.Work, *_: Any, **__: Any) -> None:
        waited = self._sent.pop(id(work), None)
        if waited is not None and _is_nccl(waited.group):  # one after the other, on one stream
            self._sent = {
                key: one for key, one in self._sent.items() if one.group is not waited.group
            }


def _is_nccl(group: dist.ProcessGroup) -> bool:
    return ranks_of(group) is not None and "nccl" in dist.get_backend(group)
