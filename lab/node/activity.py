"""What the system says that a process does: also for one that hangs, and without its help."""

import contextlib
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from lab.node.locks import holders, name_of
from lab.node.processes import children, descendants, stat, threads

TICKS = os.sysconf("SC_CLK_TCK")
"""Of a second, as proc(5) counts the processor's time."""
GONE = "gone"
UNKNOWN = {
    "state": None,
    "cpu_s": None,
    "threads": None,
    "busy": None,
    "children": None,
    "name": None,
    "lock_of": None,
}
CHILDREN = 64
"""How many processes that one has started are told of."""
SETTLED = 0.02
"""Seconds for which a process must be stopped to count as that: it may be about to end."""


def activity(pid: int, *, locks: bool = True) -> dict[str, Any]:
    """A process with all that it has started.

    Args:
        pid: the process.
        locks: False: leave the list of all locks of the machine unread, which may be long.

    Returns:
        `state`: the letter of ps(1) (R, S, D, T, Z, ...), or `gone`; `cpu_s`: seconds of the
        processor's time so far; `threads`: how many it has; `busy`: whether any thread wants the
        processor, or a disk, at this moment; `children`: `pid` and `state` of each process that it
        has started itself and not waited for the end of; `name`: what it is called in the `lock_of`
        of other processes, which is who holds the file lock that one waits for. All but the first
        two are null where the system does not tell.
    """
    if sys.platform != "linux":
        return _as_ps_says(pid)
    fields = stat(pid)
    if fields is not None and fields[0] == "T":
        time.sleep(SETTLED)
        fields = stat(pid)
    if fields is None:
        return {**UNKNOWN, "state": GONE}
    family = [pid, *descendants(pid)]
    # Its own time, and that of the children that have ended: those are not in the family any more.
    spent = [sum(map(int, one[11:15])) for one in map(stat, family) if one is not None]
    return {
        "state": fields[0],
        "cpu_s": round(sum(spent) / TICKS, 3),
        "threads": int(fields[17]),
        "busy": any(_works(thread) for member in family for thread in threads(member)),
        "children": [
            {"pid": child, "state": known[0]}
            for child in children(pid)[:CHILDREN]
            if (known := stat(child)) is not None
        ],
        "name": name_of(pid),
        "lock_of": holders(pid) if locks else None,
    }


def _works(thread: Path) -> bool:
    """Whether it has the processor or waits for its turn, or for a disk."""
    with contextlib.suppress(OSError):  # it has ended
        text = (thread / "stat").read_text(errors="replace")
        return text.rpartition(")")[2].split()[0] in "RD"
    return False


def _as_ps_says(pid: int) -> dict[str, Any]:
    done = subprocess.run(
        ["ps", "-o", "state=,time=", "-p", str(pid)], capture_output=True, text=True, check=False
    )
    state, _, spent = done.stdout.strip().partition(" ")
    if not state:
        return {**UNKNOWN, "state": GONE}
    seconds = 0.0
    for part in spent.strip().replace("-", ":").split(":"):
        seconds = 60 * seconds + float(part)
    busy = state[0] == "R"
    return {**UNKNOWN, "state": state[0], "cpu_s": seconds, "busy": busy}
