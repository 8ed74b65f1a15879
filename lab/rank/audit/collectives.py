"""Which collectives a rank takes part in, and in which order.

Twice: as the script calls them, with its line, before they are begun; and as PyTorch's flight
recorder has them, among them those that DistributedDataParallel begins in C++. What is new is
written at once, since a collective that the ranks do not agree on may never return.
"""

import _thread
import functools
import inspect
import linecache
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d

from ..groups import history
from ..threads import begin
from .counts import ranks_of
from .hooks import Hooks
from .recorder import START_FOLDER

SAME: Mapping[str, str | None] = {
    "all_reduce": "tensor",
    "broadcast": "tensor",
    "reduce": "tensor",
    "all_gather": "tensor",
    "all_gather_single": "input_tensor",
    "all_gather_into_tensor": "input_tensor",
    "gather": "tensor",
    "scatter": "tensor",
    "reduce_scatter": "output",
    "reduce_scatter_single": "output",
    "reduce_scatter_tensor": "output",
    "all_to_all": None,
    "all_to_all_single": None,
    "barrier": None,
    "all_gather_object": None,
    "gather_object": None,
    "broadcast_object_list": None,
    "scatter_object_list": None,
}
"""The collectives; of each the argument that has one shape and dtype on all ranks of the group."""
RECORDED = ("all_reduce", "broadcast", "reduce", "_allgather_base", "_reduce_scatter_base")
"""Names of the flight recorder, of operations whose input is alike on all ranks."""
POINT_TO_POINT = ("isend", "irecv")
"""What gloo counts among the operations of a group on the two ranks that it is about; the others of
torch.distributed are made of them."""
ROOTS = ("src", "dst", "group_src", "group_dst")
PAUSE = 0.25
"""Seconds between two looks at the flight recorder, at least."""
LEAVING = 0.05
"""Seconds that the threads of process groups have before the groups are taken apart."""
SHARE = 0.01
"""Of the time: what these looks may take."""

Signature = tuple[Any, ...]
"""Group, its ranks, who says so, operation, shape, dtype, reduction, root, file, line, function;
of a call the text of its line.

Recorded once, and from then on as its place among those that were."""


def install(hooks: Hooks) -> None:
    """Wrap the collectives, and look at the flight recorder from time to time."""
    if not dist.is_available():
        return
    watch = Collectives(hooks)
    for op in SAME:
        function = getattr(distributed_c10d, op, None)
        if function is not None:
            wrapped = watch.wrap(op, function)
            setattr(distributed_c10d, op, wrapped)
            setattr(dist, op, wrapped)
    for op in POINT_TO_POINT:
        function = getattr(distributed_c10d, op)
        hooks.wrap(distributed_c10d, op, after=hooks.counts.count_apart(function))
        setattr(dist, op, getattr(distributed_c10d, op))
    hooks.wrap(distributed_c10d, "monitored_barrier", after=hooks.counts.monitored)
    hooks.recorder.before_close.append(watch.look)
    hooks.wrap(distributed_c10d, "destroy_process_group", before=watch.leave)
    for name in ("monitored_barrier", "destroy_process_group"):
        setattr(dist, name, getattr(distributed_c10d, name))
    begin(watch.look_on)


class Collectives:
    """Gathers what was called, and what the flight recorder has, and records it in batches."""

    def __init__(self, hooks: Hooks) -> None:
        self._hooks, self._recorder = hooks, hooks.recorder
        self._shorts: dict[Signature, int] = {}
        self._new: list[Signature] = []
        self._seen: list[tuple[int, int, int]] = []
        self._texts: dict[tuple[str, int], str] = {}
        """Of the lines that have called."""
        self._adding = _thread.allocate_lock()
        self._last: dict[str, int] = {}
        """By group: the number of the last entry that was read of the flight recorder."""
        self._inside = _thread._local()
        """`on`: this thread is in one of them."""

    def wrap(self, op: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """The function, noting each call before it begins."""
        names = inspect.signature(function).parameters
        places = {name: (place, names[name].default) for place, name in enumerate(names)}
        rooted = not places.keys().isdisjoint(ROOTS)

        @functools.wraps(function)
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            if getattr(self._inside, "on", False) or torch.compiler.is_compiling():
                return function(*args, **kwargs)

            def argument(name: str) -> Any:
                place, default = places.get(name, (len(args), None))
                return kwargs.get(name, args[place] if place < len(args) else default)

            self._hooks.tell([self._note], op, argument, rooted)
            self._inside.on = True  # those of objects are made of others
            try:
                return function(*args, **kwargs)
            finally:
                self._inside.on = False

        return wrapped

    def look_on(self) -> None:
        """Look at the flight recorder for ever, in a thread."""
        began = time.perf_counter()
        while self._look_aside():
            time.sleep(max(PAUSE, (time.perf_counter() - began) / SHARE))
            began = time.perf_counter()

    def _look_aside(self) -> bool:
        with self._recorder.sampling.beside:
            return self._hooks.safely(self.look)

    def look(self) -> None:
        """Record what was called, and what the flight recorder has that was not there before."""
        members = {}
        if dist.is_initialized():
            for group in list(distributed_c10d._world.pg_map):
                if (ranks := ranks_of(group)) is not None:
                    members[group.group_name] = ranks
        for one in history(START_FOLDER)["collectives"] if members else ():
            name, number = one["group"], one["seq"]
            if name in members and number > self._last.get(name, 0) and not one["p2p"]:
                self._last[name] = number
                same = one["op"] in RECORDED and len(one["shapes"]) == 1
                shape = tuple(one["shapes"][0]) if same else None
                dtype = one["dtypes"][0] if same else None
                site = (one["site"] or {}).get
                place = site("file"), site("line"), site("function")
                what = ("recorder", one["op"], shape, dtype, None, None, *place)
                self._add((name, members[name], *what), number)
        self._record()

    def leave(self, group: Any = None) -> None:
        """The script is about to take its groups apart, or one of them."""
        self._hooks.safely(self.look)
        self._hooks.counts.leave(group)
        # Their threads take the interpreter's lock to let go of what is done, and who takes the
        # last group apart holds it while waiting for them (torch 2.13): with our threads about,
        # they would now and then come too late for ever.
        time.sleep(LEAVING)

    def _note(self, op: str, argument: Callable[[str], Any], rooted: bool) -> None:
        group = argument("group") or dist.group.WORLD
        if not isinstance(group, dist.ProcessGroup) or (ranks := ranks_of(group)) is None:
            return  # this rank is no member, or the group is gone
        same = SAME[op]
        value = None if same is None else argument(same)
        # NCCL gathers parts of different shapes, too.
        if op == "all_gather" and dist.get_backend(group) == "nccl":
            value = None
        reduction = argument("op")
        root = next((argument(name) for name in ROOTS if argument(name) is not None), 0)
        site = self._recorder.site()
        signature = (
            group.group_name,
            ranks,
            "call",
            op,
            tuple(value.shape) if isinstance(value, torch.Tensor) else None,
            str(value.dtype).removeprefix("torch.") if isinstance(value, torch.Tensor) else None,
            None if reduction is None else str(reduction).rpartition(".")[2],
            root if rooted else None,
            *site.values(),
            self._text_at(site["file"], site["line"]),
        )
        if self._add(signature, self._hooks.counts.begun(group) + 1):
            self._record()
            self._recorder.write()

    def _text_at(self, file: str | None, line: int | None) -> str | None:
        if file is None or line is None:
            return None
        text = self._texts.get((file, line))
        if text is None:
            text = linecache.getline(str(Path(START_FOLDER, file)), line).strip()
            self._texts[file, line] = text
        return text or None

    def _add(self, signature: Signature, number: int) -> bool:
        """Note a collective; whether there was none like it before."""
        with self._adding:
            new = signature not in self._shorts
            if new:
                self._shorts[signature] = len(self._shorts)
                self._new.append(signature)
            self._seen.append((self._shorts[signature], number, self._recorder.step))
            return new

    def _record(self) -> None:
        with self._adding:
            if self._seen:
                self._recorder.record("collectives", new=self._new, seen=self._seen)
            self._new, self._seen = [], []
