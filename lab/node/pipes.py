"""What ranks write, read as long as somebody takes it; else it waits in the ranks' pipes."""

import os
import selectors
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from lab.node import crash
from lab.node.protocol import FROM_RANKS, decode

CHUNK = 1 << 16
PIPE_CAPACITY = 1 << 20
"""The most that Linux lets a pipe hold without privileges (/proc/sys/fs/pipe-max-size)."""
STREAMS = ("out", "err", "events")
LONGEST_EVENT = 1 << 20
"""Bytes: what a bootstrap says is far shorter."""


@dataclass
class Pipe:
    """What comes from one rank on one of its descriptors."""

    rank: int
    name: str
    """One of `STREAMS`."""
    fd: int
    partial: bytes = b""
    """Of events: a line that has not ended yet."""
    crash: list[bytes] | None = None
    """Of events: what faulthandler has written, line by line."""


class Pipes:
    """The reading ends of all ranks' pipes."""

    def __init__(
        self, selector: selectors.BaseSelector, report: Callable[..., None], start_folder: str
    ) -> None:
        """`report` is told what comes: type and fields of messages of `lab.node.protocol`.

        Files below `start_folder` are told of without it.
        """
        self._selector = selector
        self._report = report
        self._start_folder = start_folder
        self._pipes: dict[int, Pipe] = {}  # by descriptor, until they end
        self._paused = False

    def add(self, rank: int, fds: Mapping[str, int]) -> None:
        """Read a rank's pipes from now on: name of the stream -> descriptor, which is ours now."""
        for name, fd in fds.items():
            os.set_blocking(fd, False)
            self._pipes[fd] = Pipe(rank, name, fd)
            if not self._paused:
                self._watch(self._pipes[fd])

    def pause(self, paused: bool) -> None:
        """Stop or go on reading."""
        if paused == self._paused:
            return
        self._paused = paused
        for pipe in self._pipes.values():
            if paused:
                self._selector.unregister(pipe.fd)
            else:
                self._watch(pipe)

    def drain(self, rank: int | None = None) -> None:
        """Report what lies in the pipes of one rank, or of all: at most what a pipe can hold."""
        for pipe in list(self._pipes.values()):
            if rank is None or pipe.rank == rank:
                for _ in range(PIPE_CAPACITY // CHUNK):
                    if not self._read(pipe):
                        break

    def end(self, rank: int) -> None:
        """Report what is left of a rank that has ended: children of its may hold its pipes open."""
        self.drain(rank)
        for pipe in self._pipes.values():
            if pipe.rank == rank:
                self._tell_crash(pipe)

    def _watch(self, pipe: Pipe) -> None:
        self._selector.register(pipe.fd, selectors.EVENT_READ, lambda: self._on_output(pipe))

    def _on_output(self, pipe: Pipe) -> None:
        if pipe.fd in self._pipes and not self._paused:  # both may have changed since select
            self._read(pipe)

    def _read(self, pipe: Pipe) -> bool:
        """Report one chunk of a pipe; False when there is none."""
        try:
            data = os.read(pipe.fd, CHUNK)
        except BlockingIOError:
            return False
        if not data:
            if not self._paused:
                self._selector.unregister(pipe.fd)
            os.close(pipe.fd)
            del self._pipes[pipe.fd]
            self._tell_crash(pipe)
            return False
        if pipe.name == "events":
            *lines, pipe.partial = (pipe.partial + data).split(b"\n")
            if len(pipe.partial) > LONGEST_EVENT:
                lines.append(pipe.partial)  # no event, so this is said of what there is of it
                pipe.partial = b""
            for line in lines:
                if pipe.crash is None and line.startswith(crash.BEGIN):
                    pipe.crash = []
                # It may be that of a child, a data loader's worker say, while the rank lives on.
                if pipe.crash is None or line.startswith(b"{"):
                    self._on_event(pipe.rank, line)
                else:
                    pipe.crash.append(line)
        else:
            text = data.decode("utf-8", "surrogateescape")
            self._report("log", rank=pipe.rank, stream=pipe.name, data=text)
        return True

    def _tell_crash(self, pipe: Pipe) -> None:
        if pipe.crash is None:
            return
        text = b"\n".join(pipe.crash).decode(errors="replace")
        pipe.crash = None
        threads = crash.stacks(text, self._start_folder)
        self._report("state", rank=pipe.rank, probe={"time": time.time(), "threads": threads})

    def _on_event(self, rank: int, line: bytes) -> None:
        """Hand on what a rank's bootstrap says; the script may have got hold of its descriptor."""
        try:
            message = decode(line)
            fields = {name: message[name] for name in FROM_RANKS[message["type"]]}
        except (ValueError, KeyError):
            text = f"lab: rank {rank} wrote to lab's own descriptor, which is ignored: "
            said = line[:80].decode(errors="replace")
            self._report("log", rank=rank, stream="err", data=f"{text}{said}\n")
        else:
            self._report(message["type"], rank=rank, **fields)
