"""How many bytes this process has received over TCP, as the kernel counted them.

What a collective is given says little about what it sends: gloo's reduce_scatter_tensor, for one,
is an all-reduce on the wire. gloo and `lab.parallel` talk over TCP, on one machine too, and Linux
counts the bytes of each connection: `struct tcp_info` in linux/tcp.h, tcp(7).
"""

import os
import socket
import struct
import sys
from pathlib import Path

_BYTES_RECEIVED = 128
"""Offset of `tcpi_bytes_received` in `struct tcp_info`, in Linux since 4.1."""


def received_bytes() -> int | None:
    """By all open TCP connections of this process, payload only; None where that is unknown."""
    if sys.platform != "linux":
        return None
    total = 0
    for entry in Path("/proc/self/fd").iterdir():
        try:
            if not str(entry.readlink()).startswith("socket:"):
                continue
            # A duplicate, since closing the object would close the connection.
            with socket.socket(fileno=os.dup(int(entry.name))) as connection:
                if not _is_tcp(connection):
                    continue
                info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 256)
        except OSError:
            continue  # it was closed meanwhile
        if len(info) < _BYTES_RECEIVED + 8:
            return None
        total += struct.unpack_from("=Q", info, _BYTES_RECEIVED)[0]
    return total


def _is_tcp(connection: socket.socket) -> bool:
    internet = connection.family in (socket.AF_INET, socket.AF_INET6)
    return internet and connection.type == socket.SOCK_STREAM
