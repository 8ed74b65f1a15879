"""The descriptor on which a rank tells its agent what happens: whole lines, from any thread."""

import _thread
import contextlib
import faulthandler
import json
import os


def encoded(**message: object) -> bytes:
    """A message as it is written."""
    return json.dumps(message).encode() + b"\n"


class Events:
    """Writes messages of `lab.node.protocol` for the agent, one JSON document a line."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._lock = _thread.allocate_lock()

    @classmethod
    def from_environment(cls) -> "Events | None":
        """Those to the agent, kept from the script and from what the script starts."""
        fd = os.environ.pop("LAB_EVENTS_FD", None)
        if fd is None:
            return None
        os.set_inheritable(int(fd), False)
        return cls(int(fd))

    def take_crashes(self) -> None:
        """Have a fatal signal tell where all threads are, before it ends the process.

        Where the script, or its environment, wants that on stderr, it is theirs.
        """
        if not faulthandler.is_enabled():
            faulthandler.enable(self._fd, all_threads=True)

    def send(self, **message: object) -> None:
        """Write one message; quiet when the agent has gone (stderr still has what it says)."""
        self.write(encoded(**message))

    def write(self, message: bytes) -> None:
        """The same, of one that is `encoded`."""
        left = memoryview(message)
        with self._lock, contextlib.suppress(OSError):
            while left:  # a signal may cut a write short
                left = left[os.write(self._fd, left) :]
