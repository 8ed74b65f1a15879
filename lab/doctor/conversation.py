"""Speaking with the doctor's program on all nodes at once: everybody is told the same."""

import base64
import contextlib
import json
import queue
import threading
from collections.abc import Iterator, Mapping
from typing import Any, Protocol

from lab.channel import NOT_FOUND, Channel
from lab.deploy.program import OLDEST_PYTHON, program
from lab.errors import LabError
from lab.node.doctor import Hello
from lab.threads import side_by_side
from lab.topology import Node
from lab.transport.base import Transport
from lab.transport.facts import messages, pythons

MODULES = [
    f"lab.node.{name}"
    for name in (
        *("memory", "facts", "host", "network", "limits", "software", "services", "links"),
        *("roll_call", "protocol", "environment", "ports", "doctor"),
    )
]
"""The program, each part after those that it imports."""
GONE = "gone"
"""Type of the message that a node says nothing more; `problem` says why."""
PARALLEL = 64

Message = Mapping[str, Any]


class Conversation(Protocol):
    """With all nodes of a topology; what they say has `node`, the node rank."""

    def tell(self, order: Message) -> None:
        """Say something to all of them."""

    def hear(self, timeout: float) -> Message | None:
        """What one of them says next; None: nobody says anything in that time (seconds)."""

    def close(self) -> None:
        """End it, and the program everywhere."""


class NodeChannels:
    """A channel to each node; implements `Conversation`."""

    def __init__(self, transport: Transport, hello: Hello) -> None:
        """Start the program on all nodes; does not wait for them."""
        self._transport = transport
        self._hello = hello
        self._heard: queue.Queue[Message] = queue.Queue()
        self._channels: dict[int, Channel] = {}
        for rank, node in enumerate(transport.topology.nodes):
            threading.Thread(target=self._converse, args=(rank, node), daemon=True).start()

    def _converse(self, rank: int, node: Node) -> None:
        """Hand on what one node says, to its end."""
        problem = "it has no Python"
        try:
            for channel in pythons(self._transport, node):
                said = bytearray()
                spoke = False
                channel.send(first_lines({**self._hello, "node": rank}))
                self._channels[rank] = channel
                for message in answers(channel, said):
                    if message["type"] == "too-old":
                        problem = too_old(message)
                    else:
                        spoke = True
                        self._heard.put(message)
                if spoke or channel.wait(timeout=10) != NOT_FOUND:
                    problem = last_words(said) or problem
                    break
                channel.close()
        except (LabError, OSError, TimeoutError, ValueError) as error:
            problem = str(error)
        self._heard.put({"type": GONE, "node": rank, "problem": problem})

    def tell(self, order: Message) -> None:
        """See `Conversation`."""
        for channel in list(self._channels.values()):
            channel.send(json.dumps(order).encode() + b"\n")

    def hear(self, timeout: float) -> Message | None:
        """See `Conversation`."""
        with contextlib.suppress(queue.Empty):
            return self._heard.get(timeout=max(0.0, timeout))
        return None

    def close(self) -> None:
        """See `Conversation`."""
        side_by_side(close, list(self._channels.values()), PARALLEL)


def answers(channel: Channel, errors: bytearray) -> Iterator[Message]:
    """What the program says there, its answers put together from their pieces.

    What comes on stderr is appended to `errors`.

    Raises:
        LabError: it is damaged, by what else writes there.
    """
    begun: dict[int, bytes] = {}
    for message in messages(channel, errors):
        if message.get("type") == "too-old":
            yield message
        elif message.get("type") == "piece":  # else a host's own greeting is JSON as well
            try:
                rank = message["node"]
                begun[rank] = begun.get(rank, b"") + base64.b64decode(message["data"])
                whole = json.loads(begun.pop(rank)) if message["last"] else None
            except (ValueError, KeyError, TypeError) as error:
                raise LabError(f"what it says is damaged: {error}") from error
            if whole is not None:
                yield whole


def first_lines(hello: Mapping[str, Any]) -> bytes:
    """What the program's stdin begins with: itself, and what there is to know."""
    return program(MODULES, OLDEST_PYTHON) + json.dumps(hello).encode() + b"\n"


def too_old(message: Message) -> str:
    """What to say of a Python that answered `too-old`."""
    needed = ".".join(map(str, OLDEST_PYTHON))
    return f"its Python is {message['python']}; it takes {needed} or newer"


def last_words(said: bytes | bytearray) -> str:
    """The last line of what a program wrote to stderr; empty: nothing."""
    lines = said.decode(errors="replace").strip().splitlines()
    return lines[-1].strip() if lines else ""


def close(channel: Channel) -> None:
    """End a program by the end of its stdin, and then the channel."""
    channel.close_stdin()
    with contextlib.suppress(TimeoutError, OSError, LabError):  # it is ended, then
        channel.wait(timeout=1.0)
    channel.close()
