"""What rsync starts in the place of ssh: joins its streams with a socket of the controller.

Started with the socket's number, a host's name and the command for the host; the first line that
the controller reads is this command.
"""

import json
import os
import socket
import sys
import threading

CHUNK = 1 << 16


def _outwards(controller: socket.socket) -> None:
    while data := os.read(0, CHUNK):
        controller.sendall(data)
    controller.shutdown(socket.SHUT_WR)


def main() -> None:
    """Pass on both ways until the controller has no more to say."""
    controller = socket.socket(fileno=int(sys.argv[1]))
    controller.sendall(json.dumps(sys.argv[3:]).encode() + b"\n")
    threading.Thread(target=_outwards, args=[controller], daemon=True).start()
    while data := controller.recv(CHUNK):
        while data:
            data = data[os.write(1, data) :]


if __name__ == "__main__":
    main()
