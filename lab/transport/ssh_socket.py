"""The socket under an SSH connection: quick with small messages, and not patient for ever."""

import contextlib
import socket
import sys
import threading
import time
from typing import Any

from paramiko import Message, SSHException, Transport
from paramiko.common import cMSG_GLOBAL_REQUEST

KEEP_ALIVE = 15
"""Seconds after which to say a word again, so that nobody on the way forgets us."""
SILENCE = 60
"""Seconds after which a host that does not answer, or acknowledge what we say, counts as gone."""


class QuickTransport(Transport):
    """paramiko's, without delay for small messages, and asking whether the other end still answers.

    That is for what stands between two ends and acknowledges for one that is gone or frozen: a jump
    host, a forwarded port. Like ssh's ServerAliveInterval, which paramiko has not.
    """

    def __init__(self, sock: Any, *given: Any, **named: Any) -> None:
        """`sock`: as soon as it is connected.

        Nagle's algorithm waits for an acknowledgement that the other end delays, 40 ms twice in
        each login; ssh(1) switches it off as well. Other ciphers' MACs than AES-GCM's are compared
        in Python.
        """
        if isinstance(sock, socket.socket):  # through a gateway, its own connection has one
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        super().__init__(sock, *given, **named)
        options = self.get_security_options()
        options.ciphers = sorted(options.ciphers, key=lambda name: "gcm" not in name)
        self._unanswered = 0

    def keep_alive(self) -> None:
        """Ask every now and then; end the connection where there is no answer."""
        threading.Thread(target=self._ask, daemon=True).start()

    def _ask(self) -> None:
        while self.is_active() and self._unanswered < SILENCE // KEEP_ALIVE:
            self._unanswered += 1
            message = Message()
            message.add_byte(cMSG_GLOBAL_REQUEST)
            message.add_string("keepalive@openssh.com")
            message.add_boolean(True)  # who does not know it has to say so (RFC 4254, section 4)
            own: Any = self
            with contextlib.suppress(OSError, EOFError, SSHException):
                own._send_user_message(message)
            time.sleep(KEEP_ALIVE)
        if self.is_active():
            self.saved_exception = SSHException(f"it has not answered for {SILENCE} s")
            self.close()

    def _parse_request_success(self, m: Message) -> None:
        self._unanswered = 0
        base: Any = super()
        base._parse_request_success(m)

    def _parse_request_failure(self, m: Message) -> None:
        self._unanswered = 0
        base: Any = super()
        base._parse_request_failure(m)


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
