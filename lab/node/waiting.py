"""Who waits for input from a pipe: what Linux tells of system calls that other processes are in.

`/proc/PID/task/TID/syscall` (proc(5)) has the number and the arguments of the call that a thread is
blocked in. It needs the right to trace the process (ptrace(2)), which a parent has unless the
system's administrator took it from everybody.
"""

import os
import platform
import select
import struct
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from lab.node.processes import descendants, threads

PIECE = 4096
"""Bytes that count as waited for where the call does not say how many."""
Read = tuple[int, int]
"""A descriptor that a call reads from or waits on, and how many bytes it takes at most."""
Arguments = Sequence[int]
Call = Callable[[Path, Arguments], Iterator[Read]]
"""What a thread in a call with these arguments waits for."""


def can_look() -> bool:
    """Whether this system tells."""
    return platform.machine() in _CALLS and Path("/proc/self/syscall").exists()


def awaited(pipe: os.stat_result, pid: int) -> int:
    """How many bytes of a pipe a process or one below it waits for; 0 when none does.

    Raises:
        PermissionError: this process may not know.
    """
    sizes = [0]
    for process in (pid, *descendants(pid)):
        for thread in threads(process):
            try:
                sizes += [size for fd, size in _reads(thread) if _is(thread, fd, pipe)]
            except PermissionError:
                raise
            except (OSError, struct.error):  # it has ended, or does something else by now
                continue
    return max(sizes)


def _reads(thread: Path) -> Iterator[Read]:
    number, *words = (thread / "syscall").read_text().split() or ["none"]
    call = _CALLS[platform.machine()].get(number)  # none for other calls, and for `running`
    if call is not None:
        yield from call(thread, [int(word, 16) for word in words])


def _is(thread: Path, fd: int, file: os.stat_result) -> bool:
    try:
        return os.path.samestat((thread / "fd" / str(fd)).stat(), file)
    except FileNotFoundError:  # closed, or the other end of a connection that has no name
        return False


def _read(_thread: Path, arguments: Arguments) -> Iterator[Read]:
    yield arguments[0], arguments[2]


def _readv(_thread: Path, arguments: Arguments) -> Iterator[Read]:
    yield arguments[0], PIECE


def _splice(_thread: Path, arguments: Arguments) -> Iterator[Read]:
    yield arguments[0], arguments[4]


def _poll(thread: Path, arguments: Arguments) -> Iterator[Read]:
    address, count = arguments[:2]
    for fd, events, _ in struct.iter_unpack("ihh", _memory(thread, address, 8 * count)):
        if fd >= 0 and events & select.POLLIN:
            yield fd, PIECE


def _select(thread: Path, arguments: Arguments) -> Iterator[Read]:
    count, address = arguments[:2]
    if address:
        bits = int.from_bytes(_memory(thread, address, (count + 7) // 8), "little")
        yield from ((fd, PIECE) for fd in range(count) if bits >> fd & 1)


def _epoll(thread: Path, arguments: Arguments) -> Iterator[Read]:
    for line in (thread / "fdinfo" / str(arguments[0])).read_text().splitlines():
        if line.startswith("tfd:"):  # tfd: 5 events: 19 data: ...
            _, fd, _, events, *_ = line.split()
            if int(events, 16) & select.EPOLLIN:
                yield int(fd), PIECE


def _memory(thread: Path, address: int, size: int) -> bytes:
    with (thread / "mem").open("rb", buffering=0) as memory:
        memory.seek(address)
        return memory.read(size)


_CALLS: dict[str, dict[str, Call]] = {
    "x86_64": {
        "0": _read,
        "7": _poll,
        "19": _readv,
        "23": _select,
        "232": _epoll,  # epoll_wait
        "270": _select,  # pselect6
        "271": _poll,  # ppoll
        "275": _splice,
        "281": _epoll,  # epoll_pwait
    },
    "aarch64": {
        "22": _epoll,  # epoll_pwait
        "63": _read,
        "65": _readv,
        "72": _select,  # pselect6
        "73": _poll,  # ppoll
        "76": _splice,
    },
}
"""Calls that take input or wait for it, by machine and number (Linux, asm/unistd.h)."""
