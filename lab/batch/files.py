"""What the ranks of a job have written into the run directory, read as it grows.

See `lab.node.task` for what they write: nobody tells us, since nobody drives the job.
"""

import codecs
import contextlib
import json
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lab.node.places import events_of, places
from lab.node.protocol import Message

if TYPE_CHECKING:
    from lab.topology import Topology


def nodes_of(topology: "Topology") -> dict[str, Any]:
    """What `lab.node.task.NODES` says of a topology."""
    return {
        "topology": topology.name,
        "names": [node.name for node in topology.nodes],
        "slots": [node.slots for node in topology.nodes],
        "elastic": topology.is_elastic,
    }


class Tail:
    """A file that others append to, which may not be there yet."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = 0

    def read(self) -> bytes:
        """What is new."""
        try:
            with self._path.open("rb") as file:
                file.seek(self._offset)
                data = file.read()
        except OSError:
            return b""
        self._offset += len(data)
        return data


class RankFiles:
    """The files of one rank."""

    def __init__(self, run: Path, node: str, rank: int) -> None:
        self.node = node
        self.rank = rank
        folder = run / node
        self._logs = {stream: Tail(folder / f"rank{rank}.{stream}") for stream in ("out", "err")}
        self._decoders = {
            stream: codecs.getincrementaldecoder("utf-8")("surrogateescape")
            for stream in self._logs
        }
        self._events = Tail(events_of(run, node, rank))
        self._partial = b""
        self._at = 0.0  # of the last event

    def logs(self) -> Iterable[tuple[str, str]]:
        """New output: stream and text."""
        for stream, tail in self._logs.items():
            text = self._decoders[stream].decode(tail.read())
            if text:
                yield stream, text

    def events(self) -> list[Message]:
        """New messages, in the order of their times.

        A rank that torchrun has started anew may be on another host, whose clock is behind.
        """
        *lines, self._partial = (self._partial + self._events.read()).split(b"\n")
        messages = []
        for line in lines:
            with contextlib.suppress(ValueError):  # of a rank whose node died while it wrote
                message = json.loads(line)
                message["at"] = self._at = max(self._at, float(message["at"]))
                messages.append(message)
        return messages


class JobFiles:
    """All ranks of a job."""

    def __init__(self, run: Path, nodes: Mapping[str, Any]) -> None:
        """`nodes`: see `nodes_of`."""
        self.nodes: list[str] = nodes["names"]
        self.is_elastic: bool = nodes["elastic"]
        self.places = places(nodes)
        self._ranks = [RankFiles(run, name, rank) for rank, name in self.places.items()]
        self.restart = -1
        """How often the job has begun again, as far as its ranks have told."""
        self.events: list[Message] = []
        """Of the ranks since they last began, in the order of their happening."""

    def read(
        self,
        log: Callable[[str, int, str, str], Any] | None,
        event: Callable[[Message], Any],
    ) -> None:
        """Hand on what is new: output first, since a rank wrote it before it ended.

        Without `log` it is not read, which may be much.
        """
        new: list[dict[str, Any]] = []
        for rank in self._ranks:
            # Asked for before the output: what was written before an event is read with it.
            events = rank.events()
            if log is not None:
                for stream, text in rank.logs():
                    log(rank.node, rank.rank, stream, text)
            new += events
        for message in sorted(new, key=lambda message: float(message["at"])):
            if message.get("restart", self.restart) < self.restart:
                continue  # of a host that was frozen: its rank has long been begun elsewhere
            if message["type"] == "started" and message["restart"] > self.restart:
                self.restart = message["restart"]
                self.events = []
            self.events.append(message)
            event(message)
        self.events.sort(key=lambda message: float(message["at"]))

    @property
    def started(self) -> set[int]:
        """Ranks that have begun, this time."""
        return {m["rank"] for m in self.events if m["type"] == "started"}

    @property
    def is_stopped(self) -> bool:
        """Whether the ranks are ended since they made no progress."""
        return any(m["type"] == "stop" for m in self.events)

    @property
    def silent(self) -> dict[int, str]:
        """Ranks that have begun and not told of their end, this time, and their nodes."""
        return running(self.events)


def running(events: Iterable[Message]) -> dict[int, str]:
    """Ranks that have begun and not told of their end, and their nodes.

    torchrun may have ended all and begun again, with fewer ranks where it has lost some: what of
    them is not in this world does not run, though nobody may have told.
    """
    found: dict[int, str] = {}
    for message in events:
        if message["type"] == "started":
            found[message["rank"]] = message["node"]
            if "world" in message:
                size = message["world"]["ranks"]
                found = {rank: node for rank, node in found.items() if rank < size}
        elif message["type"] == "exit":
            found.pop(message["rank"], None)
    return found
