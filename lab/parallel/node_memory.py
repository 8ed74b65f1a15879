"""What the ranks of one node share: a piece of memory, and signals that say what is in it.

The memory has no name in any file system, so nothing is left of it however its users end: the first
rank of the node makes it and hands its file descriptor to the others through Unix sockets. Over the
same sockets travel the signals, bytes that are counted. A rank waits in the kernel, not in a loop,
which matters where ranks outnumber cores; the system calls order the accesses to the memory on any
processor; and a rank that dies is noticed at once, since its sockets close.
"""

import mmap
import os
import secrets
import socket
import sys
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import timedelta
from pathlib import Path

import torch
from torch import Tensor


def node_from_environment() -> str:
    """The name or number of this rank's node: the same on all its ranks, and only there."""
    for name in ("GROUP_RANK", "SLURM_NODEID"):
        if name in os.environ:
            return os.environ[name]
    return socket.gethostname()


class Listener:
    """Where this rank can be reached by the others of its node, before they share memory."""

    def __init__(self) -> None:
        token = f"lab-{secrets.token_hex(16)}"
        # Linux has addresses that are no files: nothing to remove. Elsewhere: until `close`.
        linux = sys.platform == "linux"
        self.address = f"\0{token}" if linux else str(Path(tempfile.gettempdir()) / token)
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.bind(self.address)
        self.socket.listen(128)

    def close(self) -> None:
        """After all have connected."""
        self.socket.close()
        if not self.address.startswith("\0"):
            Path(self.address).unlink(missing_ok=True)


class NodeMemory:
    """Memory that some ranks share, with counted signals among them.

    Attributes:
        bytes: [size], uint8: the shared memory. Zeros at first.
    """

    def __init__(
        self,
        rank: int,
        addresses: Mapping[int, str],
        listener: Listener,
        size: int,
        deadline: timedelta,
    ) -> None:
        """Connect the ranks and map the memory. All of them call it, and each closes its listener.

        Args:
            rank: this one.
            addresses: of the listeners of all ranks of the node, by rank; this one's as well.
            listener: this rank's.
            size: bytes; the same on all.
            deadline: of each wait, here and later.

        Raises:
            OSError: another cannot be reached: they are not on one node, or not in one container.
            RuntimeError: another is gone, or did not answer within the deadline.
        """
        self.rank = rank
        self.deadline = deadline
        self._counts: dict[int, Counter[int]] = {}
        self._sockets: dict[int, socket.socket] = {}
        seconds = deadline.total_seconds()
        for other in sorted(addresses):
            if other < rank:
                peer = socket.socket(socket.AF_UNIX)
                peer.settimeout(seconds)
                peer.connect(addresses[other])
                peer.sendall(rank.to_bytes(4, "little"))
                self._add(other, peer)
        listener.socket.settimeout(seconds)
        while len(self._sockets) < len(addresses) - 1:
            peer, _ = listener.socket.accept()
            peer.settimeout(seconds)
            self._add(int.from_bytes(peer.recv(4, socket.MSG_WAITALL), "little"), peer)
        first = min(addresses)
        if rank == first:
            descriptor = _anonymous_file(size)
            for peer in self._sockets.values():
                socket.send_fds(peer, [b"m"], [descriptor])
        else:
            _, (descriptor, *_), _, _ = socket.recv_fds(self._sockets[first], 1, 1)
        mapping = mmap.mmap(descriptor, size)
        os.close(descriptor)
        self.bytes: Tensor = torch.frombuffer(mapping, dtype=torch.uint8)

    def _add(self, rank: int, peer: socket.socket) -> None:
        self._sockets[rank] = peer
        self._counts[rank] = Counter()

    def signal(self, kind: int, ranks: Sequence[int]) -> None:
        """Tell `ranks` that one more `kind` (0 to 255) has happened here.

        Each of them has to wait for this rank now and then: a socket that nobody reads is full
        after a few hundred signals, and the sender would wait for ever.
        """
        for rank in ranks:
            if rank == self.rank:
                continue
            try:
                self._sockets[rank].sendall(bytes([kind]))
            except OSError as error:
                raise RuntimeError(self._gone(rank)) from error

    def wait(self, kind: int, count: int, ranks: Sequence[int]) -> None:
        """Wait until each of `ranks` but this one has signalled `kind` at least `count` times.

        Raises:
            RuntimeError: one is gone, or has not within the deadline.
        """
        for rank in ranks:
            while rank != self.rank and self._counts[rank][kind] < count:
                try:
                    signals = self._sockets[rank].recv(4096)
                except TimeoutError as error:
                    seconds = self.deadline.total_seconds()
                    raise RuntimeError(
                        f"rank {self.rank}: no signal from rank {rank} of this node within "
                        f"{seconds:g} s"
                    ) from error
                except OSError:
                    signals = b""
                if not signals:
                    raise RuntimeError(self._gone(rank))
                self._counts[rank].update(signals)

    def _gone(self, rank: int) -> str:
        return f"rank {self.rank}: rank {rank}, with which it shares a node's memory, is gone"

    def close(self) -> None:
        """Leave. The memory goes with the last who has it."""
        for peer in self._sockets.values():
            with suppress(OSError):
                peer.close()


def _anonymous_file(size: int) -> int:
    """A descriptor of memory, of that many zeros, that has no name."""
    if sys.platform == "linux":
        descriptor = os.memfd_create("lab-node-memory")
    else:
        with tempfile.TemporaryFile() as file:
            descriptor = os.dup(file.fileno())
    os.ftruncate(descriptor, size)
    return descriptor
