"""Messages between a controller and the program on a host: JSON lines, and bytes in between."""

import json
import signal
from io import BufferedReader
from typing import Any, BinaryIO

CHUNK = 1 << 18


class Wire:
    """One end, on the host."""

    def __init__(self, incoming: BufferedReader, outgoing: BinaryIO) -> None:
        self._incoming = incoming
        self._outgoing = outgoing
        self.silence = 0
        """Seconds without a word after which this process ends where others wait for it, too: a
        controller that has lost its power or its network says none. 0: it waits for ever."""

    def receive(self, *, held: bool = False) -> dict[str, Any] | None:
        """The next message; None: the controller has gone, or has let go.

        Args:
            held: whether others wait for this process meanwhile.
        """
        signal.alarm(self.silence if held else 0)
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
        """Some of the bytes that come, while others wait for this process.

        Raises:
            EOFError: the connection was lost.
        """
        signal.alarm(self.silence)
        data = self._incoming.read1(min(most, CHUNK))
        signal.alarm(0)
        if not data:
            raise EOFError
        return data
