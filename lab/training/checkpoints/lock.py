"""One training at a time saves in a folder: who does holds a lock on a file in it. Without torch.

It is flock(2)'s lock: it ends with the process that holds it, however that ends, so none is ever
left behind. On NFS it holds between hosts as well (Linux since 2.6.12; where a host dies, until the
server gives its lease up, 90 seconds by default).
"""

import fcntl
import os
import socket
import sys
import time
import weakref
from contextlib import suppress
from datetime import UTC, datetime
from errno import ENOLCK, ENOSYS, EOPNOTSUPP
from pathlib import Path

from lab.errors import LabError
from lab.training.checkpoints.manifest import printable

NAME = ".training.lock"
PAUSE = 0.1
"""Seconds between two tries."""

_held: set[int] = set()
"""Descriptors of locks that this process holds."""


def _let_go() -> None:
    """In a child, which would keep a lock when the training itself has been killed."""
    while _held:
        os.close(_held.pop())


os.register_at_fork(after_in_child=_let_go)


class FolderLock:
    """Held from when it is made, until `release` or until it is forgotten."""

    def __init__(self, folder: Path, *, patience: float = 0.0) -> None:
        """Take it.

        Args:
            folder: there already.
            patience: seconds to wait for whoever has it.

        Raises:
            LabError: another has it.
            OSError: the folder cannot be written.
        """
        path = folder / NAME
        end = time.monotonic() + patience
        while (number := _taken(path)) is None:
            if time.monotonic() >= end:
                raise LabError(
                    f"another training saves in {folder}: {_holder(path)}. "
                    "Wait for its end, or choose another folder"
                )
            time.sleep(PAUSE)
        self.release = weakref.finalize(self, _release, number, path)
        """Let others have it."""
        os.ftruncate(number, 0)
        os.pwrite(number, _who_we_are().encode(), 0)


def _taken(path: Path) -> int | None:
    """The descriptor of a file that we have locked; None where another has."""
    number = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
    _held.add(number)
    try:
        fcntl.flock(number, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        _close(number)
        return None
    except OSError as error:
        if error.errno not in (ENOLCK, ENOSYS, EOPNOTSUPP):
            _close(number)
            raise
        print(
            "lab: the file system of the checkpoints has no locks: nothing keeps another training "
            "from saving in the same folder",
            file=sys.stderr,
            flush=True,
        )
    if _is_at(number, path):
        return number
    _close(number)  # who had it has removed the file since we opened it
    return _taken(path)


def _is_at(number: int, path: Path) -> bool:
    with suppress(FileNotFoundError):
        return os.path.samestat(os.fstat(number), path.stat())
    return False


def _release(number: int, path: Path) -> None:
    if number not in _held:  # in a child
        return
    with suppress(OSError):  # a file without a lock keeps nobody out
        if _is_at(number, path):
            path.unlink()
    _close(number)


def _close(number: int) -> None:
    _held.discard(number)
    os.close(number)


def _who_we_are() -> str:
    run = os.environ.get("LAB_RUN_ID")
    place = f"process {os.getpid()} on {socket.gethostname()}" + (f", run {run}" if run else "")
    return f"{place}, since {datetime.now(UTC):%Y-%m-%d %H:%M:%S} UTC"


def _holder(path: Path) -> str:
    with suppress(OSError):
        return printable(path.read_text(errors="replace")[:200]) or "it has only begun to"
    return "it has just ended"
