"""The caller's standard input, of which nothing is read before a rank waits for it."""

import os
import signal
import threading
import time
from collections.abc import Callable

BACKGROUND_POLL = 0.2
"""Seconds between two looks whether the terminal is ours again."""


class Stdin:
    """Reads the caller's stdin for one run, however often its ranks begin again.

    A read that waits for the user must not keep the run from going on, or from ending: it has a
    thread, which there is none of while nobody asks for input.
    """

    def __init__(self, fd: int = 0, on_prompt: Callable[[], None] = lambda: None) -> None:
        """`on_prompt` is called when a read begins to wait for somebody at a terminal."""
        self._fd = fd
        self._on_prompt = on_prompt
        self._lock = threading.Lock()
        self._reading = False
        self._data: bytes | None = None  # has been read and not been taken; empty: the end
        self._again: Callable[[], None]

    def read(self, size: int, again: Callable[[], None]) -> bytes | None:
        """At most `size` bytes; empty at the end.

        None when there are none yet: a read of that size has begun, and `again` is called, from
        another thread, when it has ended. What it read is there for whoever calls next.
        """
        with self._lock:
            if self._data is not None:
                data, rest = self._data[:size], self._data[size:]
                self._data = rest if rest or not data else None
                return data
            self._again = again
            begins, self._reading = not self._reading, True
        if os.isatty(self._fd):
            self._on_prompt()
        if begins:
            threading.Thread(target=self._serve, args=(size,), daemon=True, name="stdin").start()
        return None

    def _serve(self, size: int) -> None:
        data = self._read(size)
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
                return os.read(self._fd, size)
            except OSError:
                if not self._is_in_background():
                    return b""  # the terminal has gone
                time.sleep(BACKGROUND_POLL)

    def _is_in_background(self) -> bool:
        try:
            return os.tcgetpgrp(self._fd) != os.getpgrp()
        except OSError:  # no terminal, or not that of this session
            return False
