"""The caller's standard input, of which nothing is read before a rank waits for it."""

import os
import select
import signal
import threading
import time
from collections.abc import Callable
from typing import Protocol

from lab.node.waiting import PIECE

RANK = 0
"""Whose stdin it becomes."""
BACKGROUND_POLL = 0.2
"""Seconds between two looks whether the terminal is ours again."""


class Terminal(Protocol):
    """Where somebody is asked for input."""

    def ask(self, rank: int) -> None:
        """A rank waits for it."""

    def answered(self) -> None:
        """Somebody has given it; called from another thread."""


class Stdin:
    """Reads the caller's stdin for one run, however often its ranks begin again.

    A read that waits for the user must not keep the run from going on, or from ending: it has a
    thread, which there is none of while nobody asks for input.
    """

    def __init__(self, terminal: Terminal | None = None, fd: int = 0) -> None:
        """`terminal` is told of reads that wait, if they are from a terminal."""
        self._terminal = terminal if os.isatty(fd) else None
        self._fd = fd
        self._lock = threading.Lock()
        self._reading = False
        self._data: bytes | None = None  # has been read and not been taken; empty: the end
        self._again: Callable[[], None]

    def read(self, size: int, again: Callable[[], None]) -> bytes | None:
        """Input, at most `size` bytes or `PIECE`, whichever is more; empty at the end.

        None when there is none yet: a read has begun, and `again` is called, from another thread,
        when it has ended. What it read is there for whoever calls next.
        """
        with self._lock:
            if self._data is not None:
                most = max(size, PIECE)
                data, rest = self._data[:most], self._data[most:]
                self._data = rest if rest or not data else None
                return data
            self._again = again
            begins, self._reading = not self._reading, True
        if self._terminal is not None:
            self._terminal.ask(RANK)
        if begins:
            threading.Thread(target=self._serve, args=(size,), daemon=True, name="stdin").start()
        return None

    def _serve(self, size: int) -> None:
        data = self._read(size)
        if data and self._terminal is not None:
            self._terminal.answered()
        with self._lock:
            self._data, self._reading = data, False
            again = self._again
        again()

    def _read(self, size: int) -> bytes:
        """Wait for input; in the background (`lab run ... &`), for the foreground first."""
        # Where this signal cannot be delivered, a read in the background fails instead of stopping
        # the whole process. Only here: processes that other threads start are to have it.
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTTIN])
        while True:
            try:
                return self._read_line() if size < PIECE else os.read(self._fd, size)
            except BlockingIOError:  # as whoever started us has set it, for both of us
                select.select([self._fd], [], [])
            except OSError:
                if not self._is_in_background():
                    return b""  # the terminal has gone
                time.sleep(BACKGROUND_POLL)

    def _read_line(self) -> bytes:
        """A line, or as much of one as there is.

        Shells read byte by byte, to take no more than a line from whoever reads after them. So do
        we, in their place: a byte a message takes too long.
        """
        line = os.read(self._fd, 1)
        while line and len(line) < PIECE and not line.endswith(b"\n"):
            byte = os.read(self._fd, 1) if select.select([self._fd], [], [], 0)[0] else b""
            if not byte:
                break
            line += byte
        return line

    def _is_in_background(self) -> bool:
        try:
            return os.tcgetpgrp(self._fd) != os.getpgrp()
        except OSError:  # no terminal, or not that of this session
            return False
