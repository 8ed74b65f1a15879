"""Why a port cannot be had."""

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from lab.node.ports import Reservation


@pytest.fixture
def bound() -> Iterator[socket.socket]:
    """A socket that has a port."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        yield found


def test_who_listens_is_named(bound: socket.socket) -> None:
    bound.listen()
    port = bound.getsockname()[1]
    with pytest.raises(OSError, match=rf"^port {port} is taken by pid {os.getpid()} \("):
        Reservation(port)


def test_bound_by_somebody_who_does_not_listen(bound: socket.socket) -> None:
    port = bound.getsockname()[1]
    with pytest.raises(OSError, match=rf"^port {port} cannot be had \(Address already in use\)"):
        Reservation(port)


def test_another_run(bound: socket.socket) -> None:
    port = bound.getsockname()[1]
    bound.close()
    held = Reservation(port)
    with pytest.raises(OSError, match="is taken by another run of lab"):
        Reservation(port)
    held.release()
    Reservation(port).release()


UNPRIVILEGED = Path("/proc/sys/net/ipv4/ip_unprivileged_port_start")

if os.geteuid() == 0 and UNPRIVILEGED.exists() and int(UNPRIVILEGED.read_text()) > 81:

    def test_a_privileged_port() -> None:
        text = """
import os
from lab.node.ports import Reservation
os.setgroups([]); os.setgid(65534); os.setuid(65534)
try:
    Reservation(81)
except OSError as error:
    print(error)
"""
        done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        assert done.stdout == "port 81 cannot be had (Permission denied): name another, or none\n"
