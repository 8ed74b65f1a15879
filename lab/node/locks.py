"""Which process holds a file lock that another one waits for, as Linux tells in /proc/locks."""

import contextlib
import os
from collections.abc import Iterable
from functools import cache
from pathlib import Path

LOCKS = Path("/proc/locks")
BOOT = Path("/proc/sys/kernel/random/boot_id")
WAITS = "->"


def name_of(pid: int) -> str | None:
    """A process as nodes on one machine call it all alike; None where the system does not tell."""
    machine = _machine()
    return None if machine is None else f"{machine}/{pid}"


def holders(pid: int) -> list[str]:
    """The names of those that hold what a process waits for; none where it waits for no lock."""
    with contextlib.suppress(OSError, ValueError, IndexError):  # or lines of another form
        found = holders_in(LOCKS.read_text().splitlines(), pid)
        return [name for one in found if (name := name_of(one)) is not None]
    return []


def holders_in(lines: Iterable[str], pid: int) -> list[int]:
    """The same of the lines of /proc/locks (proc(5)): whoever waits comes after who holds it.

    A process outside of this namespace has no number here, and an open file description's lock has
    no process.
    """
    found, holder = set(), 0
    for line in lines:
        _, *fields = line.split()
        waits = fields[0] == WAITS
        owner = int(fields[3 + waits])
        if not waits:
            holder = owner
        elif owner == pid and holder > 0:
            found.add(holder)
    return sorted(found - {pid})


@cache
def _machine() -> str | None:
    """The namespace of the numbers of processes: nodes may share it, or have one each."""
    with contextlib.suppress(OSError):
        return f"{BOOT.read_text().partition('-')[0]}/{os.stat('/proc/self/ns/pid').st_ino}"  # noqa: PTH116 - a link of proc, not a path
    return None
