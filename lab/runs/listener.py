"""Who is told what happens in a run."""

from typing import Protocol

from lab.node.protocol import Message


class Listener(Protocol):
    """Somebody who wants to know what happens while it happens."""

    def log(self, node: str, rank: int, stream: str, text: str) -> None:
        """A rank wrote to stdout (`out`) or stderr (`err`); not always whole lines."""

    def event(self, message: Message) -> None:
        """Anything else that an agent reported, and `run` when the run begins."""
