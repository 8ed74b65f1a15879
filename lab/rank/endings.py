"""By which exceptions processes have ended that this one has forked (multiprocessing).

They print it and end with code 1, and their parent knows no more than that. So they write it into
a pipe before they end. Those that are spawned are none of lab's, and say nothing.
"""

import contextlib
import json
import os
import sys
from typing import Any

from .exceptions import described
from .imports import after_import

UTIL = "multiprocessing.util"
HOOK = "_exit_function"
"""What a child calls at its end, also while an exception ends it (`BaseProcess._bootstrap`)."""
LONGEST = 4096
"""What goes into a pipe at once (PIPE_BUF of Linux)."""
MESSAGE = 500
FIELDS = ("kind", "message", "file", "line")

Told = dict[str, Any]


class Endings:
    """The pipe, and what has come out of it."""

    def __init__(self, start_folder: str) -> None:
        """`start_folder`: files below it are told of without it."""
        self._start_folder = start_folder
        self._pid = os.getpid()
        self._reading, self._writing = os.pipe()
        self._pipe = _identity(self._reading)
        os.set_blocking(self._reading, False)
        os.set_blocking(self._writing, False)
        self._received = b""
        self._told: dict[int, Told] = {}

    def note(self) -> None:
        """In a child: write the exception that ends it."""
        error = sys.exc_info()[1]
        if error is None or isinstance(error, SystemExit) or os.getpid() == self._pid:
            return
        told = described(error, error.__traceback__, self._start_folder)
        told = {name: told[name] for name in FIELDS}
        told["message"] = told["message"][:MESSAGE]
        message = json.dumps({"pid": os.getpid(), "exception": {**told, "chain": []}}).encode()
        if len(message) < LONGEST and self._is_ours(self._writing):
            os.write(self._writing, message + b"\n")

    def told(self) -> dict[int, Told]:
        """By pid."""
        with contextlib.suppress(OSError):
            while self._is_ours(self._reading) and (data := os.read(self._reading, 1 << 16)):
                self._received += data
        *lines, self._received = self._received.split(b"\n")
        for line in lines:
            one = json.loads(line)
            self._told[one["pid"]] = one["exception"]
        return self._told

    def _is_ours(self, descriptor: int) -> bool:
        """Whether the script has not closed it, and got another file there."""
        return _identity(descriptor) == self._pipe


def _identity(descriptor: int) -> tuple[int, int]:
    """The same for both ends."""
    status = os.fstat(descriptor)
    return status.st_dev, status.st_ino


_endings: Endings | None = None


def watch(start_folder: str) -> None:
    """Have them told of from when the script imports multiprocessing."""
    after_import(UTIL, lambda: _wrap(start_folder))


def told() -> dict[int, Told]:
    """By pid: the exception, as `exceptions.described` has it, without those before it."""
    return {} if _endings is None else _endings.told()


def _wrap(start_folder: str) -> None:
    global _endings
    util: Any = sys.modules[UTIL]
    end = getattr(util, HOOK, None)
    if end is None:
        return
    with contextlib.suppress(OSError):  # there are no more descriptors
        endings = _endings = Endings(start_folder)

        def noting(*args: Any, **kwargs: Any) -> Any:
            with contextlib.suppress(Exception):  # the child ends as it does
                endings.note()
            return end(*args, **kwargs)

        setattr(util, HOOK, noting)
