"""The workers of one node's torchrun, as they tell of themselves; each has a socket."""

import contextlib
import json
import os
import secrets
import selectors
import shutil
import signal
import socket
import sys
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from lab.node import processes
from lab.node.pipes import CHUNK, STREAMS, Pipes
from lab.node.warm import peer_uid
from lab.node.worker import address

Place = Mapping[str, Any]
"""The variables that say which worker of which world one is, by name, and its pid as `worker`."""


@dataclass
class Worker:
    """A worker, as far as it has told of itself."""

    connection: socket.socket
    received: bytes = b""
    fds: list[int] = field(default_factory=list)
    place: Place = field(default_factory=dict)
    pid: int | None = None
    """Of the rank."""
    code: int | None = None

    @property
    def rank(self) -> int:
        """Its global rank; it has one when it has told its place."""
        return int(self.place["RANK"])

    @property
    def groups(self) -> list[int]:
        """The process groups of the rank and of its parent."""
        return [pid for pid in (self.pid, self.place.get("worker")) if pid is not None]


@dataclass(frozen=True)
class Owner:
    """Who starts the workers: knows what they are to run, and is told what becomes of them."""

    order: Callable[[Place], tuple[Mapping[str, Any], int]]
    """What the worker of that place is to run: see `lab.node.worker`; and a descriptor, its own
    from then on, of what it is to read."""
    started: Callable[[int, int, Place], None]
    """Rank and pid."""
    ended: Callable[[int, int], None]
    """Rank and exit code, or -n for signal n."""
    failed: Callable[[str], None]
    """A rank could not be started."""
    gone: Callable[[], None]
    """A worker has."""


class Workers:
    """The connections to all workers that run."""

    def __init__(self, selector: selectors.BaseSelector, pipes: Pipes, owner: Owner) -> None:
        self._selector = selector
        self._pipes = pipes
        self._owner = owner
        self._workers: dict[int, Worker] = {}  # by descriptor of the connection
        self._folder: str | None = None

    def listen(self, backlog: int) -> str:
        """Make the socket that workers find; its name, as `lab.node.worker.address` takes it."""
        name = f"@multinode-lab-worker-{secrets.token_hex(8)}"
        if sys.platform != "linux":
            self._folder = tempfile.mkdtemp(prefix="multinode-lab-")  # ours alone
            name = f"{self._folder}/workers"
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        listener.bind(address(name))
        listener.listen(backlog)
        self._selector.register(
            listener, selectors.EVENT_READ, lambda: self._accept(listener.accept()[0])
        )
        return name

    def close(self) -> None:
        """Remove the socket."""
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)

    def __bool__(self) -> bool:
        return bool(self._workers)

    @property
    def groups(self) -> list[int]:
        """The process groups of all workers."""
        return [pid for known in self._workers.values() for pid in known.groups]

    @property
    def pids(self) -> dict[int, int]:
        """Of the ranks that run."""
        known = self._workers.values()
        return {one.rank: one.pid for one in known if one.pid is not None and one.code is None}

    def listen_to_all(self) -> None:
        """Take what they have said until now, out of turn."""
        for known in list(self._workers.values()):
            self._on_words(known)

    def _accept(self, connection: socket.socket) -> None:
        if sys.platform == "linux" and peer_uid(connection) != os.getuid():
            connection.close()
            return
        connection.setblocking(False)
        known = self._workers[connection.fileno()] = Worker(connection)
        self._selector.register(connection, selectors.EVENT_READ, partial(self._on_words, known))

    def _on_words(self, known: Worker) -> None:
        while self._workers.get(known.connection.fileno()) is known:  # has not gone since select
            try:
                data, fds, _, _ = socket.recv_fds(known.connection, CHUNK, len(STREAMS))
            except BlockingIOError:
                return
            except OSError:
                data, fds = b"", []
            if not data:
                self._on_gone(known)
                return
            known.fds += fds
            *lines, known.received = (known.received + data).split(b"\n")
            for line in lines:
                self._on_message(known, json.loads(line))

    def _on_message(self, known: Worker, message: Mapping[str, Any]) -> None:
        if "worker" in message:
            known.place = message
            self._pipes.add(known.rank, dict(zip(STREAMS, known.fds, strict=True)))
            order, stdin = self._owner.order(message)
            with contextlib.suppress(OSError):  # it has gone, which is heard next
                _send(known.connection, json.dumps(order).encode() + b"\n", stdin)
            os.close(stdin)
        elif "pid" in message:
            known.pid = message["pid"]
            self._owner.started(known.rank, message["pid"], known.place)
        elif "error" in message:
            self._owner.failed(message["error"])
        else:
            known.code = message["code"]
            self._owner.ended(known.rank, message["code"])

    def _on_gone(self, known: Worker) -> None:
        self._selector.unregister(known.connection)
        del self._workers[known.connection.fileno()]
        known.connection.close()
        if known.pid is not None and known.code is None:  # killed, and the rank with it
            processes.signal_group(known.pid, signal.SIGKILL)
            self._owner.ended(known.rank, -signal.SIGKILL)
        self._owner.gone()


def _send(connection: socket.socket, data: bytes, fd: int) -> None:
    """Hand over all of it, to a worker that waits for it."""
    connection.setblocking(True)
    sent = socket.send_fds(connection, [data], [fd])
    connection.sendall(data[sent:])
    connection.setblocking(False)
