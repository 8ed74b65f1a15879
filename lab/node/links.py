"""Connections between nodes, made and measured by themselves. Standard library only.

A `Listener` answers whoever knows the examination's token; `greet`, `ping` and `push` are what the
others do with it. One connection, one purpose: `<token> <purpose>`, answered with the node's name
and the time on its clock.
"""

import contextlib
import json
import socket
import threading
import time
from typing import Any

CONNECT_WITHIN = 3.0
"""Seconds: a lost packet is sent again after one, and after three."""
ANSWER_WITHIN = 3.0
PINGS = 20
PING_FOR = 0.3
"""Seconds after which no further ping is sent, on a slow link."""
CHUNK = 1 << 18


class Listener:
    """Listens on one port of all addresses, and serves until `close`."""

    def __init__(self, name: str, token: str, port: int = 0) -> None:
        """`name` is this node's; raises OSError where the port cannot be had."""
        self._name = name
        self._token = token
        family = socket.AF_INET6 if socket.has_dualstack_ipv6() else socket.AF_INET
        self._socket = socket.create_server(
            ("", port), family=family, backlog=256, dualstack_ipv6=family == socket.AF_INET6
        )
        self.port: int = self._socket.getsockname()[1]
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._socket.accept()
            except OSError:  # closed
                return
            threading.Thread(target=self._answer, args=(connection,), daemon=True).start()

    def _answer(self, connection: socket.socket) -> None:
        with contextlib.suppress(OSError, ValueError), connection:
            connection.settimeout(ANSWER_WITHIN)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            token, _, purpose = _line(connection).partition(" ")
            if token != self._token:
                return
            connection.sendall(f"{self._name} {time.time()!r}\n".encode())
            if purpose == "ping":
                while data := connection.recv(1):
                    connection.sendall(data)
            elif purpose == "push":
                connection.sendall(json.dumps(_swallow(connection)).encode() + b"\n")

    def close(self) -> None:
        """Free the port. A thread in accept(2) would hold it, so it is woken."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()


def _line(connection: socket.socket) -> str:
    text = b""
    while not text.endswith(b"\n") and len(text) < 4096:
        data = connection.recv(1)
        if not data:
            break
        text += data
    return text.decode(errors="replace").rstrip("\n")


def _swallow(connection: socket.socket) -> dict[str, float]:
    """Take all that comes: bytes, and seconds since the first."""
    buffer = bytearray(CHUNK)
    size = connection.recv_into(buffer)
    began = time.monotonic()
    total = 0  # of what came after the first, whose time is not known
    while size:
        size = connection.recv_into(buffer)
        total += size
    return {"bytes": total, "seconds": time.monotonic() - began}


def _open(address: str, port: int, token: str, purpose: str) -> tuple[socket.socket, str]:
    """A connection, and what is answered at its other end."""
    connection = socket.create_connection((address, port), CONNECT_WITHIN)
    try:
        connection.settimeout(ANSWER_WITHIN)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.sendall(f"{token} {purpose}\n".encode())
        return connection, _line(connection)
    except BaseException:
        connection.close()
        raise


def greet(address: str, port: int, token: str) -> dict[str, Any]:
    """Connect and ask who is there: `who` (empty: a stranger), or `error` in words.

    Beside it `clock_ahead`: the seconds by which the other clock is, give or take `clock_unsure`.
    """
    asked = time.time()
    try:
        connection, answer = _open(address, port, token, "greet")
        connection.close()
        who, _, theirs = answer.partition(" ")
        unsure = (time.time() - asked) / 2
        return {"who": who, "clock_ahead": float(theirs) - asked - unsure, "clock_unsure": unsure}
    except ValueError:  # somebody else, who says something else
        return {"who": ""}
    except OSError as error:
        return {"error": _words(error)}


def ping(address: str, port: int, token: str) -> dict[str, float]:
    """Seconds there and back on an idle connection: the quickest of some, as `latency`.

    Raises:
        OSError: it cannot be measured.
    """
    best = float("inf")
    connection, _ = _open(address, port, token, "ping")
    with connection:
        over = time.monotonic() + PING_FOR
        for _ in range(PINGS):
            began = time.monotonic()
            connection.sendall(b"?")
            if not connection.recv(1):
                raise ConnectionResetError("the other end closed the connection")
            best = min(best, time.monotonic() - began)
            if time.monotonic() > over:
                break
    return {"latency": best}


def push(address: str, port: int, token: str, seconds: float) -> dict[str, float]:
    """Send as fast as it goes for a while: `bandwidth` in bytes a second, as they arrived.

    Raises:
        OSError: it cannot be measured; TimeoutError: what is large does not get through.
    """
    data = bytes(CHUNK)
    connection, _ = _open(address, port, token, "push")
    with connection:
        over = time.monotonic() + seconds
        while time.monotonic() < over:
            connection.sendall(data)
        connection.shutdown(socket.SHUT_WR)
        answer: dict[str, Any] = json.loads(_line(connection))
    return {"bandwidth": answer["bytes"] / max(answer["seconds"], 1e-6)}


def _words(error: Exception) -> str:
    if isinstance(error, TimeoutError):
        return "timed out"
    return (getattr(error, "strerror", None) or str(error)).lower()
