"""How many point-to-point operations this process has begun.

Gloo's flight recorder has none of them, and a stack does not tell in which handle's `wait` a thread
is. But who waits for a message waits for one more than its peer has sent.
"""

import functools
import inspect
import sys
from collections.abc import Callable
from typing import Any

from .imports import C10D, after_import, replace

PEERS = {"isend": "dst", "irecv": "src"}
"""The operations of which torch.distributed makes all others, and what they call their peer."""

_counts: dict[tuple[str, int | None, int], dict[str, int]] = {}
"""By group, peer (its global rank; None: whoever sends) and tag."""


def watch() -> None:
    """Count them from when the script imports torch.distributed."""
    after_import(C10D, _wrap)


def told() -> list[dict[str, Any]]:
    """How many isend (`sent`) and irecv (`received`) have begun, by `group`, `peer` and `tag`.

    `peer` is the other's global rank; null: received from whoever sends.
    """
    return [
        {"group": group, "peer": peer, "tag": tag, **count}
        for (group, peer, tag), count in list(_counts.items())
    ]


def _wrap() -> None:
    for name in PEERS:
        replace(name, _counting(getattr(sys.modules[C10D], name), name))


def _counting(function: Callable[..., Any], name: str) -> Callable[..., Any]:
    parameters = list(inspect.signature(function).parameters)

    @functools.wraps(function)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        work = function(*args, **kwargs)
        if work is not None:  # this rank is in the group
            _count(name, {**dict(zip(parameters, args, strict=False)), **kwargs})
        return work

    return wrapped


def _count(name: str, given: dict[str, Any]) -> None:
    c10d: Any = sys.modules[C10D]
    group = given.get("group") or c10d._world.default_pg
    peer = given.get(PEERS[name])
    if peer is None and given.get(f"group_{PEERS[name]}") is not None:
        peer = c10d.get_global_rank(group, given[f"group_{PEERS[name]}"])
    count = _counts.setdefault(
        (group.group_name, peer, given.get("tag", 0)), {"sent": 0, "received": 0}
    )
    count["sent" if name == "isend" else "received"] += 1
