"""Whether this node reaches the others now: a TCP connection to each, without waiting for any."""

import contextlib
import errno
import os
import selectors
import socket
import threading
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

PATIENCE = 2.5
"""Seconds for a connection. A packet that was lost is sent again after one (RFC 6298)."""
BACKLOG = 64
UNSURE = "nobody says"
"""How it begins where nothing came in time, but this machine may just be too busy."""
HERE = "\0"
"""This node itself, which is tried as well: no other has this name."""
SLOWER = 10
"""How many times longer than from this node itself an answer from another may take."""
LONGEST = 3.5
"""Seconds for a connection from a machine that is that slow."""

Address = tuple[socket.AddressFamily, Any]
"""As a socket takes it."""


class Door:
    """A port that the other nodes may try; who comes is let in and sent away."""

    def __init__(self, selector: selectors.BaseSelector) -> None:
        """Open it.

        Raises:
            OSError: there is no port to be had.
        """
        try:
            listener = socket.create_server(
                ("::", 0), family=socket.AF_INET6, backlog=BACKLOG, dualstack_ipv6=True
            )
        except (OSError, ValueError):  # no IPv6 here
            listener = socket.create_server(("", 0), backlog=BACKLOG)
        listener.setblocking(False)
        self.port: int = listener.getsockname()[1]
        selector.register(listener, selectors.EVENT_READ, partial(_turn_away, listener))


def _turn_away(listener: socket.socket) -> None:
    with contextlib.suppress(OSError):
        listener.accept()[0].close()


class Visits:
    """Tries to connect to other nodes; `found` has what came of it, by node."""

    def __init__(
        self,
        selector: selectors.BaseSelector,
        doors: Mapping[str, tuple[str, int]],
        done: Callable[[], None],
        own_port: int | None = None,
    ) -> None:
        """`doors`: address and port by node; `done` is called when the last has been tried.

        `own_port`: of this node's own door: if that does not answer, nothing is known of others.
        """
        self.found: dict[str, str] = {}
        self.addresses: dict[str, str] = {}
        """What names stand for here, by node."""
        self._began = time.monotonic()
        self.over_at = self._began + PATIENCE
        self._is_sure = own_port is None
        self._selector = selector
        self._doors: dict[str, tuple[str, int]] = {}
        self._done = done
        self._lookups: dict[str, int] = {}  # what a look-up writes to when it knows
        self._open: dict[str, socket.socket] = {}
        if own_port is not None:
            self._knock(HERE, (socket.AF_INET, ("127.0.0.1", own_port)))
        self._doors.update(doors)  # all of them, before the first may be the last
        for node in doors:
            self._try(node)

    def add(self, node: str, name: str, port: int) -> None:
        """Try one more."""
        self._doors[node] = (name, port)
        self.over_at = max(self.over_at, time.monotonic() + PATIENCE)
        self._try(node)

    def _try(self, node: str) -> None:
        name, port = self._doors[node]
        try:
            self._knock(node, _look_up(name, port, socket.AI_NUMERICHOST))
        except (OSError, UnicodeError):  # no address, or not even a name
            self._look_up_aside(node, name, port)

    @property
    def is_over(self) -> bool:
        """Whether nothing is waited for any more."""
        return self.found.keys() == self._doors.keys()

    def _look_up_aside(self, node: str, name: str, port: int) -> None:
        """Have a thread look for a name: that may take long where the network is broken."""
        reading, writing = os.pipe()
        answer: list[Address | None] = []

        def look_up() -> None:
            try:
                answer.append(_look_up(name, port))
            except (OSError, UnicodeError):
                answer.append(None)
            os.close(writing)

        self._lookups[node] = reading
        self._selector.register(reading, selectors.EVENT_READ, partial(self._on_name, node, answer))
        threading.Thread(target=look_up, daemon=True).start()

    def _on_name(self, node: str, answer: list[Address | None]) -> None:
        if node not in self._lookups:
            return  # given up since select
        self._forget_lookup(node)
        (found,) = answer
        if found is None:
            self._settle(node, f"its name {self._doors[node][0]} is not known here")
        else:
            self._knock(node, found)

    def _forget_lookup(self, node: str) -> None:
        reading = self._lookups.pop(node)
        self._selector.unregister(reading)
        os.close(reading)

    def _knock(self, node: str, address: Address) -> None:
        family, target = address
        self.addresses[node] = target[0]
        connection = socket.socket(family, socket.SOCK_STREAM)
        connection.setblocking(False)
        code = connection.connect_ex(target)
        if code in (0, errno.EINPROGRESS):
            self._open[node] = connection
            self._selector.register(
                connection, selectors.EVENT_WRITE, partial(self._on_answer, node)
            )
        else:
            connection.close()
            self._settle(node, _in_words(code))

    def _on_answer(self, node: str) -> None:
        if node in self._open:
            code = self._open[node].getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
            self._close(node, _in_words(code))

    def give_up(self) -> None:
        """Wait for nobody any more."""
        for node in list(self._lookups):
            self._forget_lookup(node)
            self._settle(node, f"{UNSURE} what its name {self._doors[node][0]} stands for")
        late = "timeout" if self._is_sure else f"{UNSURE} whether it answers: this node is too slow"
        for node in [one for one in self._open if one != HERE]:
            self._close(node, late)

    def _close(self, node: str, what: str) -> None:
        connection = self._open.pop(node)
        self._selector.unregister(connection)
        connection.close()
        self._settle(node, what)

    def _settle(self, node: str, what: str) -> None:
        if node == HERE:
            self._is_sure = what in ("ok", "refused")
            took = time.monotonic() - self._began
            self.over_at = max(self.over_at, self._began + min(SLOWER * took, LONGEST))
            return
        self.found[node] = what
        if self.is_over:
            if HERE in self._open:
                self._close(HERE, "not waited for")
            self._done()


def _look_up(name: str, port: int, flags: int = 0) -> Address:
    found = socket.getaddrinfo(name, port, type=socket.SOCK_STREAM, flags=flags)
    family, _, _, _, target = found[0]
    return family, target


def _in_words(code: int) -> str:
    if code == 0:
        return "ok"
    words = {errno.ECONNREFUSED: "refused", errno.ETIMEDOUT: "timeout"}
    return words.get(code, os.strerror(code))
