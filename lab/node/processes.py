"""Processes and their descendants: start them so that they can be ended, and end them all."""

import contextlib
import ctypes
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_LIBC = ctypes.CDLL(None, use_errno=True) if sys.platform == "linux" else None


AGENT_SIGNALS = (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
"""What an agent wakes up for."""


def started(pid: int) -> str | None:
    """When a process started, as this system says it; None: it has ended.

    With the pid this names a process for good, since pids come again. On Linux the clock ticks
    since boot (proc(5), stat), elsewhere the second (ps(1)).
    """
    if sys.platform == "linux":
        fields = stat(pid)
        return None if fields is None or fields[0] in "ZX" else fields[19]
    done = subprocess.run(
        ["ps", "-o", "stat=,lstart=", "-p", str(pid)], capture_output=True, text=True, check=False
    )
    state, _, when = done.stdout.strip().partition(" ")
    return None if not state or state.startswith("Z") else when.strip()


def ancestors() -> list[int]:
    """The parent of this process, its parent and so on (Linux)."""
    found = [os.getppid()]
    while (fields := stat(found[-1])) is not None:
        found.append(int(fields[1]))
    return found


def stat(pid: int) -> list[str] | None:
    """The fields of proc(5)'s stat from the state on; None: there is no such process (Linux)."""
    try:
        return Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
    except OSError:
        return None


def this_process() -> dict[str, Any]:
    """What names this process for good, as plain data: its pid and when it started."""
    return {"pid": os.getpid(), "started": started(os.getpid())}


def lives(process: Mapping[str, Any]) -> bool:
    """Whether the process that `this_process` described still runs."""
    return bool(started(int(process["pid"])) == process["started"])


def become_subreaper() -> None:
    """Have orphaned descendants handed to this process instead of init (Linux, prctl(2))."""
    if _LIBC is not None:
        _LIBC.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def die_with(parent: int) -> Callable[[], None] | None:
    """What a new child does first: ask the kernel to kill it when `parent` dies (Linux)."""
    if _LIBC is None:
        return None
    prctl = _LIBC.prctl

    def ask() -> None:
        prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != parent:  # it died before we asked
            os._exit(128 + signal.SIGKILL)

    return ask


def wake_on(*numbers: int) -> int:
    """A descriptor that has something to read after one of these signals: their numbers."""
    read, write = os.pipe()
    os.set_blocking(read, False)
    os.set_blocking(write, False)
    signal.set_wakeup_fd(write, warn_on_full_buffer=False)
    for number in numbers:
        signal.signal(number, lambda *_: None)
    return read


def signal_group(pid: int, number: int) -> None:
    """Signal the process group that `start` made; quiet when it has gone."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, number)


def children(pid: int) -> list[int]:
    """The living children of a process (Linux; elsewhere none)."""
    found: list[int] = []
    for thread in threads(pid):
        with contextlib.suppress(OSError):  # it has ended
            found += map(int, (thread / "children").read_text().split())
    return found


def threads(pid: int) -> list[Path]:
    """The folder in /proc of each thread of a process; none where it has ended (Linux)."""
    try:
        return list(Path(f"/proc/{pid}/task").iterdir())
    except OSError:
        return []


def descendants(pid: int) -> list[int]:
    """All living processes below `pid`, children before grandchildren (Linux; elsewhere none)."""
    found = children(pid)
    for child in found:  # which grows meanwhile
        found += children(child)
    return found


def kill_descendants(pid: int) -> None:
    """Kill whatever is left below this process, daemons that called setsid included.

    As subreaper the caller is handed each orphan, so going round until there is none misses nobody
    who forks meanwhile. One that the kernel cannot end (stuck in a system call) is given up on.
    """
    give_up = time.monotonic() + 5
    while (left := descendants(pid)) and time.monotonic() < give_up:
        for child in left:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(child, signal.SIGKILL)
        reap()
        time.sleep(0.005)


def peak_memory_kib() -> int:
    """The most memory that this process has had at once.

    On Linux from /proc: getrusage's figure is inherited over fork and exec.
    """
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1])
    size = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return size // 1024 if sys.platform == "darwin" else size  # macOS counts bytes


def reap() -> dict[int, int]:
    """The children of this process that have ended: pid -> exit code, or -n for signal n."""
    ended: dict[int, int] = {}
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return ended
        if pid == 0:
            return ended
        ended[pid] = os.waitstatus_to_exitcode(status)


def as_shell(code: int) -> int:
    """An exit code as a shell says it: 128 + n for -n, signal n."""
    return 128 - code if code < 0 else code
