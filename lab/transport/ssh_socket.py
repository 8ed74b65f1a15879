"""The socket under an SSH connection: quick with small messages, and not patient for ever."""

import contextlib
import socket
import sys
from typing import Any

from paramiko import Transport

KEEP_ALIVE = 15
"""Seconds without a word after which to say one, so that nobody on the way forgets us."""
SILENCE = 60
"""Seconds after which a host that does not acknowledge what we say counts as gone."""


def quick_transport(sock: Any, *given: Any, **named: Any) -> Transport:
    """A `Transport` that does not hold small messages back, and takes AES-GCM where it can.

    Nagle's algorithm waits for an acknowledgement that the other end delays, 40 ms twice in each
    login; ssh(1) switches it off as well. Other ciphers' MACs are compared in Python.
    """
    if isinstance(sock, socket.socket):  # through a gateway, its own connection has one
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    made = Transport(sock, *given, **named)
    options = made.get_security_options()
    options.ciphers = sorted(options.ciphers, key=lambda name: "gcm" not in name)
    return made


def give_up_on_silence(sock: Any) -> None:
    """Have the system end a connection whose other end does not acknowledge any more."""
    if not isinstance(sock, socket.socket):
        return  # through a gateway, which has the socket
    options = [(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)]
    if sys.platform == "linux":
        options += [
            (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, KEEP_ALIVE),
            (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, KEEP_ALIVE),
            (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, SILENCE // KEEP_ALIVE),
            (socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, SILENCE * 1000),
        ]
    with contextlib.suppress(OSError):  # it has just ended
        for level, name, value in options:
            sock.setsockopt(level, name, value)
