"""A command that was started somewhere, as whoever started it sees it."""

from collections.abc import Callable, Iterator
from typing import Literal, Protocol

StreamName = Literal["out", "err"]
NOT_FOUND = 127
"""What a shell ends with where there is no such command."""
Progress = Callable[[str], None]
"""Told one short line whenever a long step begins (`building the node image`)."""


class Channel(Protocol):
    """A command that runs on a node, seen through its three standard streams."""

    def send(self, data: bytes) -> None:
        """Write to the command's stdin; does nothing when the command has closed it."""

    def close_stdin(self) -> None:
        """End the command's stdin. An agent takes this as the order to end its ranks."""

    def resize(self, rows: int, columns: int) -> None:
        """Make the command's terminal so large, where it has one."""

    def output(self) -> Iterator[tuple[StreamName, bytes]]:
        """Chunks of stdout and stderr as they come, until both have ended."""

    def wait(self, timeout: float | None = None) -> int:
        """The command's exit status (128 + n where signal n ended it).

        Raises:
            TimeoutError: it still runs after `timeout` seconds.
            LabError: it cannot be said, since the engine does not answer.
        """

    def close(self) -> None:
        """Let go of the streams; on a node of this machine also end the command."""
