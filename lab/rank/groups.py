"""What torch.distributed has done in this process: its process groups and their collectives.

From its flight recorder, which also has what C++ begins (DDP's reducer), and works on gloo without
any setting. Who is in a group is not in its records; `distributed_c10d._world` has it. Its pickle
has the Python frames from which a collective was called, which its JSON has not.
Nothing is imported here: where the script has not imported torch.distributed there are no groups.
"""

import contextlib
import functools
import sys
import threading
import time
import types
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from .blocks import blocks_of
from .frames import is_labs, is_users, shown
from .imports import C10D, after_import, replace

NEWEST = 256
"""How many collectives are told of, of each group: a difference may lie far back."""
CALLERS = 3
"""How many lines of the user's own code are told of that led to the one that called: a helper may
be called from several."""
WRAPPERS = ("c10d_logger.py", "_contextlib.py")
"""Files of torch whose frames stand around a function, and say nothing."""
LEAVE = "destroy_process_group"
LEAVING = 0.005
"""Seconds for threads of process groups before these are taken apart."""
JOIN = "torch/distributed/algorithms/join.py"
"""Whose `__exit__` calls for ranks that are out of data: the name alone says nothing."""
DECORATORS = ("wrapper", "inner_func")
"""What such frames are called elsewhere (torch.distributed.checkpoint)."""
DTYPES = {
    "BFloat16": "bfloat16",
    "Bool": "bool",
    "Byte": "uint8",
    "Char": "int8",
    "ComplexDouble": "complex128",
    "ComplexFloat": "complex64",
    "Double": "float64",
    "Float": "float32",
    "Half": "float16",
    "Int": "int32",
    "Long": "int64",
    "Short": "int16",
}
"""The flight recorder's names (c10/core/ScalarType.h) and those that users know."""

Told = dict[str, Any]

_left: Told = {}
"""What is told of the groups that the script has destroyed."""
_leaving = threading.Event()
"""Set while it destroys them: they are there yet, and nobody meets this rank in them any more."""


def watch(start_folder: str) -> None:
    """Keep what there is to tell of the groups when the script destroys them all."""
    after_import(
        C10D, lambda: replace(LEAVE, _keeping(getattr(sys.modules[C10D], LEAVE), start_folder))
    )


def _keeping(leave: Callable[..., Any], start_folder: str) -> Callable[..., Any]:
    @functools.wraps(leave)
    def wrapped(group: Any = None) -> Any:
        if group is None or group is getattr(_world(), "default_pg", None):
            with contextlib.suppress(Exception):  # the script leaves, whatever becomes of this
                last = history(start_folder)
                _left.update(last, groups=[{**one, "left": True} for one in last["groups"]])
                _leaving.set()
            # Threads of the groups that wait for the interpreter's lock, to let go of what is done,
            # get it now: torch 2.13 holds it while it waits for them.
            time.sleep(LEAVING)
        try:
            return leave(group)
        finally:
            _leaving.clear()

    return wrapped


def _world() -> Any:
    """Torch's own record of the process groups; None where there is none."""
    c10d = sys.modules.get(C10D)
    return getattr(c10d, "_world", None)


def _record(*, entries: bool) -> Told:
    """The flight recorder's, with or without the collectives and their frames."""
    dump = getattr(sys.modules.get("torch._C._distributed_c10d"), "_dump_fr_trace", None)
    pickle = sys.modules.get("pickle")  # torch has imported it
    if dump is None or pickle is None:
        return {}
    with _without_import():
        record: Told = pickle.loads(dump(entries, entries, False))
    return record


@contextlib.contextmanager
def _without_import() -> Iterator[None]:
    """Keep torch from importing its compiler, which takes seconds, to give names to frames.

    It looks for `torch._inductor`, and looking is enough to import it (`torch.__getattr__`).
    """
    torch: Any = sys.modules["torch"]
    if "torch._inductor" in sys.modules:
        yield
        return
    nothing = torch._inductor = types.SimpleNamespace()
    try:
        yield
    finally:
        if torch.__dict__.get("_inductor") is nothing:  # else somebody has imported it meanwhile
            del torch._inductor


def _members() -> list[tuple[Any, str, list[int]]]:
    """The process groups that this rank is in: the object, its name and its global ranks."""
    world = _world()
    if world is None:
        return []
    return [
        (group, world.pg_names[group], sorted(ranks))
        for group, ranks in list(world.pg_group_ranks.items())
        if group in world.pg_map and group in world.pg_names
    ]


def sequence_numbers() -> dict[str, int]:
    """How many operations each group has begun, point-to-point ones included."""
    numbers = {}
    for group, name, _ in _members():
        try:
            numbers[name] = int(group._get_sequence_number_for_group())
        except RuntimeError:  # its backend does not count
            continue
    return numbers


def in_flight() -> int:
    """How many collectives have begun and not ended."""
    status = _record(entries=False).get("pg_status", {}) if _members() else {}
    return sum(
        max(0, one["last_enqueued_collective"] - one["last_completed_collective"])
        for one in status.values()
    )


def history(start_folder: str) -> Told:
    """The groups that this rank is in, or was in last, and what was done in them.

    Returns:
        `groups`: each with its members and how far it has come; `collectives`: the newest of each,
        in the order in which they began; `blocks`: those around the lines that led there.
    """
    members = _members()
    if _left and (_leaving.is_set() or not members):
        return _left
    record = _record(entries=True) if members else {}
    entries = record.get("entries", ())
    # A name may come again when a script has destroyed its groups: the last one counts.
    numbers: dict[str, int] = {}
    for entry in entries:
        name = entry["process_group"][0]
        numbers[name] = max(entry["pg_id"], numbers.get(name, 0))
    found: dict[str, list[Told]] = {}
    for entry in entries:
        name = entry["process_group"][0]
        if entry["pg_id"] == numbers[name]:
            found.setdefault(name, []).append(entry)
    groups = []
    for group, name, ranks in members:
        status = record.get("pg_status", {}).get(str(numbers.get(name)), {})
        groups.append(
            {
                "name": name,
                "desc": group.group_desc,
                "backend": str(_world().pg_map[group][0]),
                "ranks": ranks,
                "left": False,
                "last_enqueued": status.get("last_enqueued_collective", 0),
                "last_completed": status.get("last_completed_collective", 0),
            }
        )
    known = [entry for of_group in found.values() for entry in of_group[-NEWEST:]]
    return {
        "groups": groups,
        "collectives": [_told(entry, start_folder) for entry in known],
        "blocks": _blocks(known, start_folder),
    }


def _told(entry: Mapping[str, Any], start_folder: str) -> Told:
    return {
        "group": entry["process_group"][0],
        "seq": entry["p2p_seq_id" if entry["is_p2p"] else "collective_seq_id"],
        "op": entry["profiling_name"].rpartition(":")[2],
        "p2p": entry["is_p2p"],
        "shapes": entry["input_sizes"],
        "dtypes": [DTYPES.get(one, one) for one in entry["input_dtypes"]],
        "done": entry["retired"] or entry["state"] == "completed",
        "time": entry["time_created_ns"] / 1e9,
        **_call(entry.get("frames", ()), start_folder),
    }


def _blocks(entries: Iterable[Mapping[str, Any]], start_folder: str) -> list[Told]:
    places = {
        (frame["filename"], frame["line"])
        for entry in entries
        for frame in entry.get("frames", ())
        if is_users(frame["filename"])
    }
    found = [(file, line, blocks_of(file, line)) for file, line in sorted(places)]
    return [
        {"file": shown(file, start_folder), "line": line, "blocks": blocks}
        for file, line, blocks in found
        if blocks is not None
    ]


def _call(frames: Iterable[Mapping[str, Any]], start_folder: str) -> Told:
    """Where the user's own code called it, what led there, and which of a library's functions."""
    via = None
    own: list[Told] = []
    for frame in frames:  # the innermost first
        file = frame["filename"]
        if is_users(file):
            place = {"file": shown(file, start_folder), "line": frame["line"]}
            own.append({**place, "function": frame["name"]})
            if len(own) > CALLERS:
                break
        elif (
            not own
            and not is_labs(file)
            and not file.endswith(WRAPPERS)
            and frame["name"] not in DECORATORS
        ):
            via = frame["name"]
            if via == "__exit__" and file.endswith(JOIN):
                via = "Join.__exit__"
    site, callers = (own[0], own[1:]) if own else (None, [])
    return {"site": site, "callers": callers, "via": via}
