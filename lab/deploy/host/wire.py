"""Messages between a controller and the program on a host: JSON lines, and bytes in between."""

import json
import signal
from typing import Any, BinaryIO

CHUNK = 1 << 18


class Wire:
    """One end, on the host."""

    def __init__(self, incoming: BinaryIO, outgoing: BinaryIO) -> None:
        self._incoming = incoming
        self._outgoing = outgoing

    def receive(self, patience: int = 0) -> dict[str, Any] | None:
        """The next message; None: the controller has gone, or has let go.

        Args:
            patience: seconds to wait for it, after which this process ends: a machine that has lost
                its power or its network says no word. 0: for ever.
        """
        signal.alarm(patience)
        line = self._incoming.readline()
        signal.alarm(0)
        if not line.endswith(b"\n"):
            return None
        message: dict[str, Any] = json.loads(line)
        return message

    def send(self, type: str, **fields: Any) -> None:  # noqa: A002 - the field's name
        """Say something; ASCII, so that names which are no UTF-8 survive."""
        self._outgoing.write(json.dumps({"type": type, **fields}).encode() + b"\n")
        self._outgoing.flush()

    def chunk(self, most: int) -> bytes:
        """Some of the bytes that come.

        Raises:
            EOFError: the connection was lost.
        """
        data = self._incoming.read(min(most, CHUNK))
        if not data:
            raise EOFError
        return data
