"""A free port for the rendezvous, found on the master's own node and held against other runs."""

import contextlib
import errno
import random
import socket
import sys
from pathlib import Path

LOWEST = 20_000
LISTENING = "0A"
"""A listening socket's state in /proc/net/tcp."""
EPHEMERAL = 32_768
"""Where Linux begins to hand out ports for outgoing connections, unless it says otherwise."""


def _lowest_ephemeral() -> int:
    try:
        return int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    except OSError:
        return EPHEMERAL


class Reservation:
    """A port that is free now and that no other run of lab on this node will be given.

    Rank 0 binds the port itself, so nobody can hold the port for it. What is held instead is a name
    in Linux's abstract socket namespace (per network namespace, gone with the process). Elsewhere
    the random choice has to do.
    """

    def __init__(self, port: int = 0) -> None:
        """Take that port, or look for one.

        Raises:
            OSError: it cannot be had, and why; or none can.
        """
        if port:
            holder = _hold(port)
            if holder is None:
                raise OSError(f"port {port} is taken by another run of lab: name another, or none")
            refusal = _refusal(port)
            if refusal is not None:
                holder.close()
                by = _by_whom(port)
                why = f"is taken{by}" if by else f"cannot be had ({refusal.strerror})"
                raise OSError(f"port {port} {why}: name another, or none")
            self.port = port
            self._holder = holder
            return
        top = max(_lowest_ephemeral(), LOWEST + 1000)
        for port in random.sample(range(LOWEST, top), 200):
            holder = _hold(port)
            if holder is None:
                continue
            if _refusal(port) is None:
                self.port = port
                self._holder = holder
                return
            holder.close()
        raise OSError(f"no free port between {LOWEST} and {top}")

    def release(self) -> None:
        """Let other runs have it."""
        self._holder.close()


def _hold(port: int) -> socket.socket | None:
    holder = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    if sys.platform == "linux":
        try:
            holder.bind(f"\0multinode-lab-port-{port}")
        except OSError:
            holder.close()
            return None
    return holder


def _refusal(port: int) -> OSError | None:
    """Why rank 0 could not bind it; None: it could."""
    for family, anywhere in ((socket.AF_INET6, "::"), (socket.AF_INET, "0.0.0.0")):  # noqa: S104 - as the store binds
        try:
            with socket.socket(family, socket.SOCK_STREAM) as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                if family == socket.AF_INET6:
                    probe.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
                probe.bind((anywhere, port))
        except OSError as error:
            if family == socket.AF_INET6 and error.errno != errno.EADDRINUSE:
                continue  # no IPv6 here
            return error
    return None


def _by_whom(port: int) -> str:
    """` by pid 7 (python train.py)` where somebody listens and /proc shows us who (Linux)."""
    inodes = set()
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        with contextlib.suppress(OSError):
            for line in Path(table).read_text().splitlines()[1:]:
                fields = line.split()
                if fields[3] == LISTENING and int(fields[1].rpartition(":")[2], 16) == port:
                    inodes.add(f"socket:[{fields[9]}]")
    if not inodes:
        return ""
    for link in Path("/proc").glob("[0-9]*/fd/*"):
        with contextlib.suppress(OSError):
            if str(link.readlink()) in inodes:
                pid = link.parts[2]
                command = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").strip()
                return f" by pid {pid} ({command.decode(errors='replace')[:80]})"
    return ""
