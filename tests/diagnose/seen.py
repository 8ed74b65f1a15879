"""Evidence as lab gathers it, made by hand: for what no single machine can record."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

NOW = 1_000_000.0
Json = dict[str, Any]


def call(
    seq: int,
    op: str = "all_reduce",
    line: int = 10,
    *,
    shape: Sequence[int] = (4,),
    dtype: str = "float32",
    via: str | None = None,
    ago: float | None = None,
    callers: Sequence[tuple[str, int]] = (),
) -> Json:
    """One collective of the default group; `callers`: functions and lines of the script.

    Done, unless it is the last of `rank(waits=True)`."""
    return {
        "group": "0",
        "seq": seq,
        "op": op,
        "shapes": [list(shape)],
        "dtypes": [dtype],
        "done": True,
        "time": NOW - (1000 - seq if ago is None else ago),
        "site": {"file": "train.py", "line": line, "function": "main"},
        "callers": [{"file": "train.py", "line": line, "function": name} for name, line in callers],
        "via": via or op,
    }


def frames(line: int, *library: tuple[str, str], code: str | None = None) -> list[Json]:
    """A stack, innermost first: (file, function) of libraries, then a line of the script."""
    stack = [
        {"file": f"/site-packages/{file}", "line": 1, "function": function, "user": False}
        for file, function in library
    ]
    own = {"file": "train.py", "line": line, "function": "main", "user": True, "code": code}
    return [*stack, own]


C10D = "torch/distributed/distributed_c10d.py"


def rank(
    calls: Sequence[Json] = (),
    *,
    waits: bool = False,
    stack: list[Json] | None = None,
    node: str | None = None,
    state: str = "S",
    share: float | None = 0.0,
    backend: str = "gloo",
    **changes: Any,
) -> Json:
    """One rank: `waits` in the last of its calls, or is at `stack`."""
    told = [dict(one) for one in calls]
    if waits:
        told[-1]["done"] = False
        stack = stack or frames(told[-1]["site"]["line"], (C10D, told[-1]["op"]))
    pulses = [] if share is None else [(NOW - 10, 5.0), (NOW, 5.0 + 10 * share)]
    return {
        "node": node,
        "ended": None,
        "process": {"state": state},
        "source": "probe",
        "error": None,
        "time": NOW,
        "threads": [{"name": "MainThread", "main": True, "frames": stack or []}],
        "groups": [{"name": "0", "backend": backend, "ranks": None}] if calls else [],
        "collectives": told,
        "pulses": [{"time": time, "cpu_s": cpu, "seqs": {}} for time, cpu in pulses],
        **changes,
    }


def evidence(
    ranks: Iterable[Json],
    *,
    because: str = "stall",
    nodes: Mapping[str, Json] | None = None,
    **changes: Any,
) -> Json:
    """The document: rank n is on node n, unless it says so, and all are in the default group."""
    told = list(ranks)
    for number, one in enumerate(told):
        one["node"] = one["node"] or f"node{number}"
        for group in one["groups"]:
            group["ranks"] = group["ranks"] or list(range(len(told)))
    names = dict.fromkeys(one["node"] for one in told)
    found = {name: {"alive": True, "answered": True, "peers": {}} for name in names}
    for name, one in (nodes or {}).items():
        found[name] |= one
    return {
        "schema": 1,
        "time": NOW,
        "because": because,
        "stalled_s": 60.0,
        "world_size": len(told),
        "master": "node0:29500",
        "nodes": found,
        "ranks": {str(number): one for number, one in enumerate(told)},
        "failure": None,
        **changes,
    }
