"""Rank 0's stdin: a pipe that is filled when somebody waits at its other end.

torchrun's workers share its stdin: a script that asks is answered, and one that does not ask leaves
all of it to whoever comes next (`while read host; do torchrun ...; done < hosts`). For the same
across machines an agent asks for input only when a process of the rank waits for it, whatever
program that is: Python, its debugger, an executable, a child. Where the system does not tell who
waits, one small piece is asked for ahead of time.
"""

import array
import contextlib
import fcntl
import os
import sys
import termios
import time

from lab.node.waiting import PIECE, awaited, can_look

FIRST_PAUSE = 0.001
LONGEST_PAUSE = 0.1
"""Seconds between two looks: soon after an answer, since who reads often reads again."""
MOST_EFFORT = 0.01
"""The part of its time that an agent spends on looking in vain, however many processes there are.
"""
MANY = 8
"""Pieces after which a reader is taken to want everything, and gets as much as a pipe holds."""


class Input:
    """What the ranks of one node may read: nothing, but for rank 0 where there is something."""

    def __init__(self, given: bool) -> None:
        """`given`: whether there is input for rank 0."""
        self._given = given
        self._stdin: RankStdin | None = None  # rank 0's, until its end

    @property
    def look_at(self) -> float | None:
        """When to look next for somebody who waits (`time.monotonic`); None: not for now."""
        return None if self._stdin is None else self._stdin.look_at

    def open(self, rank: int) -> int:
        """A descriptor for the stdin of a rank that is to be started."""
        if rank != 0 or not self._given:
            return os.open(os.devnull, os.O_RDONLY)
        self.end()
        self._stdin = RankStdin()
        return self._stdin.open()

    def watch(self, rank: int, pid: int) -> None:
        """Take note of the process that a rank is."""
        if rank == 0 and self._stdin is not None:
            self._stdin.watch(pid)

    def look(self) -> int:
        """How many bytes rank 0 waits for, where it is time for a look; 0: it waits for none."""
        at = self.look_at
        return self._stdin.look() if self._stdin and at and time.monotonic() >= at else 0

    def feed(self, data: bytes) -> None:
        """Answer what has been asked for; empty: there is no more."""
        if not data:
            self.end()
        elif self._stdin is not None:
            self._stdin.feed(data)

    def end(self) -> None:
        """Let whoever reads find the end."""
        if self._stdin is not None:
            self._stdin.close()
            self._stdin = None


class RankStdin:
    """The agent's end of a rank's stdin."""

    def __init__(self) -> None:
        self._reader, self._writer = os.pipe()
        os.set_blocking(self._writer, False)
        self._unwritten = b""
        self._pipe = os.fstat(self._reader)
        linux = sys.platform == "linux"
        self._capacity = fcntl.fcntl(self._reader, fcntl.F_GETPIPE_SZ) if linux else PIECE
        self._pid = 0
        self._pieces = 0
        self._pause = LONGEST_PAUSE
        self.look_at: float | None = None
        """When to look next (`time.monotonic`); None: not before an answer."""

    def open(self) -> int:
        """A descriptor for the rank."""
        return os.dup(self._reader)

    def watch(self, pid: int) -> None:
        """Look at this process and those below it from now on."""
        self._pid = pid
        self.look_at = time.monotonic() + self._pause

    def look(self) -> int:
        """How many bytes somebody waits for, at most; 0: nobody does. `feed` is the answer."""
        began = time.monotonic()
        self._write()
        size = 0 if self._holds_some() else min(self._awaited(), self._capacity)
        self._pieces += size >= PIECE
        if size >= PIECE and self._pieces > MANY:
            size = self._capacity
        ended = time.monotonic()
        longest = max(LONGEST_PAUSE, (ended - began) / MOST_EFFORT)
        self._pause = min(2 * self._pause, longest)
        self.look_at = None if size else ended + self._pause
        return size

    def feed(self, data: bytes) -> None:
        """Hand over an answer."""
        self._unwritten += data
        self._write()
        self._pause = FIRST_PAUSE
        self.look_at = time.monotonic() + self._pause

    def close(self) -> None:
        """Let the reader find the end."""
        os.close(self._writer)
        os.close(self._reader)

    def _write(self) -> None:
        # What was asked for fits, since the pipe was empty then. Not so what a rank before asked.
        with contextlib.suppress(BlockingIOError):
            while self._unwritten:
                self._unwritten = self._unwritten[os.write(self._writer, self._unwritten) :]

    def _holds_some(self) -> bool:
        count = array.array("i", [0])
        fcntl.ioctl(self._reader, termios.FIONREAD, count)
        return count[0] > 0

    def _awaited(self) -> int:
        if not can_look():
            return PIECE
        try:
            return awaited(self._pipe, self._pid)
        except PermissionError:
            return PIECE
