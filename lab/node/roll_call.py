"""The roll-call: one process of each node joins a process group and takes part in an all-reduce.

It is a fork of the doctor's program on its node, made before that has threads, so that torch is
imported while the node is looked at. Through the store each says that it is there; the master waits
for all of them a while, names those who are absent, and the others go on without.
"""

import json
import os
import time
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any, TextIO

WORK_WITHIN = {"gloo": 5.0, "nccl": 60.0}
"""Seconds for the group and its all-reduce: NCCL looks at all GPUs and links first."""
PRESENT = "present"
"""The store's key under which the master says who is."""


def fork(env: Mapping[str, str]) -> tuple[int, TextIO, TextIO]:
    """Start it, with this environment: its pid, where it reads, and what it says."""
    their_in, our_out = os.pipe()
    our_in, their_out = os.pipe()
    pid = os.fork()
    if pid:
        os.close(their_in)
        os.close(their_out)
        return pid, os.fdopen(our_out, "w"), os.fdopen(our_in)
    try:
        os.close(our_out)
        os.close(our_in)
        null = os.open(os.devnull, os.O_RDWR)
        for number in (0, 1, 2):  # whatever libraries print is not part of what we say
            os.dup2(null, number)
        os.environ.update(env)
        _take_part(os.fdopen(their_in), os.fdopen(their_out, "w"))
    finally:
        os._exit(0)


def _take_part(orders: TextIO, answers: TextIO) -> None:
    """Import torch, say what it is, wait for the order, take part."""

    def say(message: Mapping[str, Any]) -> None:
        answers.write(json.dumps(message) + "\n")
        answers.flush()

    began = time.monotonic()
    try:
        say({"type": "torch", **_torch(), "seconds": round(time.monotonic() - began, 2)})
    except Exception as error:  # noqa: BLE001 - a broken installation raises anything
        missing = {"missing": True} if getattr(error, "name", None) == "torch" else {}
        say({"type": "torch", "error": _words(error), **missing})
        return
    store: Any = None
    for line in orders:
        order = json.loads(line)
        kind = order.pop("type")
        try:
            if kind == "open":
                store = open_store(**order)
                say({"type": "open"})
            else:
                say({"type": "roll-call", **answer_roll(store, **order)})
        except Exception as error:  # noqa: BLE001 - gloo and nccl raise RuntimeError and others
            say({"type": "roll-call", "error": _words(error)})
            return


def _torch() -> dict[str, Any]:
    """What torch is here, as it says itself after its import."""
    import torch
    import torch.distributed as dist

    nccl: str | None = None
    if torch.cuda.is_available() and dist.is_nccl_available():
        nccl = ".".join(map(str, torch.cuda.nccl.version()))
    return {
        "version": torch.__version__,
        "cuda": torch.version.cuda,
        "nccl": nccl,
        "gloo": dist.is_gloo_available(),
        "gpus": torch.cuda.device_count() if torch.cuda.is_available() else 0,
        "threads": torch.get_num_threads(),
    }


def open_store(addr: str, port: int, wait: float) -> Any:
    """Open the master's store, before the others come: who finds none tries again seconds later.

    Raises:
        RuntimeError: the port is taken.
    """
    import torch.distributed

    dist: Any = torch.distributed  # its stores are there, and not in its __all__
    patience = timedelta(seconds=wait)
    return dist.TCPStore(addr, port, is_master=True, wait_for_workers=False, timeout=patience)


def answer_roll(
    store: Any, addr: str, port: int, rank: int, names: Sequence[str], backend: str, wait: float
) -> dict[str, Any]:
    """Take part as one of `names`.

    Args:
        store: the master's own, see `open_store`; None: connect to it.
        addr: the master's address.
        port: where its store listens.
        rank: which of the names this node has; 0 is the master.
        names: of all nodes.
        backend: gloo or nccl.
        wait: seconds that the master waits for the others, and these for the master.

    Returns:
        `present` (names), and `sum_is_right` (whether the all-reduce came out as it must) with the
        `seconds` that it took, the group's making included; or `error`: it failed.

    Raises:
        RuntimeError: the store cannot be reached.
    """
    import torch.distributed

    dist: Any = torch.distributed  # its stores are there, and not in its __all__
    if store is None:  # and wait for the master longer than it does for us
        patience = timedelta(seconds=wait + 2)
        store = dist.TCPStore(addr, port, wait_for_workers=False, timeout=patience)
    store.set(f"here {rank}", names[rank])
    if rank == 0:
        store.set(PRESENT, json.dumps(_wait_for(store, len(names), wait)))
    present: list[int] = json.loads(store.get(PRESENT))
    answer: dict[str, Any] = {"present": [names[one] for one in present]}
    began = time.monotonic()
    try:
        right = _all_reduce(store, rank, present, backend)
        answer |= {"sum_is_right": right, "seconds": round(time.monotonic() - began, 3)}
    except Exception as error:  # noqa: BLE001 - gloo and nccl raise RuntimeError and others
        answer["error"] = _words(error)
    store.add("done", 1)
    if rank == 0:  # the store goes with this process
        give_up = time.monotonic() + wait
        while store.add("done", 0) < len(present) and time.monotonic() < give_up:
            time.sleep(0.01)
    return answer


def _all_reduce(store: Any, rank: int, present: Sequence[int], backend: str) -> bool:
    """Make a group of those who are present and add up who they are; whether the sum is right."""
    import torch
    import torch.distributed

    dist: Any = torch.distributed
    limit = timedelta(seconds=WORK_WITHIN[backend])
    store.set_timeout(limit)
    dist.init_process_group(
        backend,
        store=dist.PrefixStore("group", store),
        rank=present.index(rank),
        world_size=len(present),
        timeout=limit,
    )
    values = torch.zeros(max(present) + 1, device="cuda:0" if backend == "nccl" else "cpu")
    values[rank] = rank + 1
    dist.all_reduce(values)
    expected = [float(one + 1) if one in present else 0.0 for one in range(len(values))]
    return bool(values.tolist() == expected)


def _wait_for(store: Any, count: int, seconds: float) -> list[int]:
    """Who has come within that time."""
    give_up = time.monotonic() + seconds
    while True:
        here = [rank for rank in range(count) if store.check([f"here {rank}"])]
        if len(here) == count or time.monotonic() > give_up:
            return here
        time.sleep(0.02)


def _words(error: Exception) -> str:
    """The first line of an error, without torch's C++ stack."""
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return lines[0][:300]
