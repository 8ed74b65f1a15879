"""What functions of torch.distributed were called with, of those that a thread hangs in."""

import sys
from types import FrameType
from typing import Any

FOLDER = "/torch/distributed/"
NAMES = (
    *("src", "dst", "group_src", "group_dst", "async_op", "tag", "rank", "world_size"),
    *("hostname", "port", "init_method"),
)
"""Arguments that are told as they are, where they are scalars."""
SECONDS = ("timeout", "wait_timeout")


def arguments(frame: FrameType) -> dict[str, Any] | None:
    """Whom it waits for, in which group and for how long; None: it is no such function."""
    if FOLDER not in frame.f_code.co_filename:
        return None
    called = set(frame.f_code.co_varnames)
    if not called.intersection((*NAMES, *SECONDS, "group", "op")):
        return None
    values = frame.f_locals
    found: dict[str, Any] = {}
    for name in NAMES:
        value = values.get(name)
        if isinstance(value, bool | int | float | str):
            found[name] = value
    for name in SECONDS:
        seconds = getattr(values.get(name), "total_seconds", None)  # of a timedelta
        if seconds is not None:
            found[name] = seconds()
    if "op" in values:
        found["op"] = str(values["op"])[:100]
    if "group" in called:
        found["group"] = _group_name(values.get("group"))
    return found or None


def _group_name(group: Any) -> str | None:
    world = getattr(sys.modules.get("torch.distributed.distributed_c10d"), "_world", None)
    group = getattr(world, "default_pg", None) if group is None else group
    return getattr(group, "group_name", None)
