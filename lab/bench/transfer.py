"""Rank 1 sends bytes to rank 0 over plain TCP, which says how fast they came. Run by `link`."""

import json
import os
import socket
import sys
import time
from pathlib import Path

from lab.bench.suites import RESULT

CHUNK = 1 << 16


def main(megabytes: int) -> None:
    """Leave `seconds` and `bytes` in the run directory, after a warm-up of a tenth."""
    rank, addr, port = (os.environ[name] for name in ("RANK", "MASTER_ADDR", "MASTER_PORT"))
    total = megabytes * 1_000_000
    if rank == "0":
        with socket.create_server(("", int(port))) as server:
            peer, _ = server.accept()
            _receive(peer, total // 10)
            began = time.monotonic()
            _receive(peer, total)
            took = {"seconds": time.monotonic() - began, "bytes": total}
            (Path(os.environ["LAB_RUN_DIR"]) / RESULT).write_text(json.dumps(took))
    elif rank == "1":
        with _connect(addr, int(port)) as peer:
            peer.sendall(bytes(total // 10))
            peer.sendall(bytes(total))
            peer.recv(1)  # until the other side has it all


def _connect(addr: str, port: int) -> socket.socket:
    give_up = time.monotonic() + 30
    while True:
        try:
            return socket.create_connection((addr, port))
        except ConnectionRefusedError:
            if time.monotonic() > give_up:
                raise
            time.sleep(0.05)


def _receive(peer: socket.socket, count: int) -> None:
    while count:
        data = peer.recv(min(CHUNK, count))
        if not data:
            raise ConnectionError("the sender has gone")
        count -= len(data)


if __name__ == "__main__":
    main(int(sys.argv[1]))
