"""Whether this node reaches the others now: a TCP connection to each, without waiting for any."""

import contextlib
import errno
import os
import selectors
import socket
import time
from collections.abc import Callable, Mapping
from functools import partial

PATIENCE = 1.0
"""Seconds for a connection. A packet that was lost is sent again after one (RFC 6298)."""
BACKLOG = 64


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


def resolved(name: str) -> str | None:
    """The address that a name stands for on this node, or None."""
    try:
        return str(socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)[0][4][0])
    except OSError:
        return None


class Visits:
    """Tries to connect to other nodes; `found` has what came of it, by node."""

    def __init__(
        self,
        selector: selectors.BaseSelector,
        doors: Mapping[str, tuple[str, int]],
        done: Callable[[], None],
    ) -> None:
        """`doors`: address and port by node; `done` is called when the last has been tried."""
        self.found: dict[str, str] = {}
        self.over_at = time.monotonic() + PATIENCE
        self._selector = selector
        self._done = done
        self._open: dict[str, socket.socket] = {}
        for node, (address, port) in doors.items():
            self._knock(node, address, port)

    @property
    def is_over(self) -> bool:
        """Whether nothing is waited for any more."""
        return not self._open

    def _knock(self, node: str, address: str, port: int) -> None:
        try:
            family, kind, _, _, target = socket.getaddrinfo(address, port, type=socket.SOCK_STREAM)[
                0
            ]
        except OSError as error:
            self.found[node] = f"its address {address} is not known here: {error.strerror}"
            return
        connection = socket.socket(family, kind)
        connection.setblocking(False)
        code = connection.connect_ex(target)
        if code in (0, errno.EINPROGRESS):
            self._open[node] = connection
            self._selector.register(
                connection, selectors.EVENT_WRITE, partial(self._on_answer, node)
            )
        else:
            connection.close()
            self.found[node] = _in_words(code)

    def _on_answer(self, node: str) -> None:
        if node in self._open:
            code = self._open[node].getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
            self._close(node, _in_words(code))

    def give_up(self) -> None:
        """Wait for nobody any more."""
        for node in list(self._open):
            self._close(node, "timeout")

    def _close(self, node: str, what: str) -> None:
        connection = self._open.pop(node)
        self._selector.unregister(connection)
        connection.close()
        self.found[node] = what
        if not self._open:
            self._done()


def _in_words(code: int) -> str:
    if code == 0:
        return "ok"
    words = {errno.ECONNREFUSED: "refused", errno.ETIMEDOUT: "timeout"}
    return words.get(code, os.strerror(code))
