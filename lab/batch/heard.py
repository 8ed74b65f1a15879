"""What the ranks of a job tell, kept as the events of a run and handed on."""

from collections.abc import Sequence

from lab.node.protocol import Message
from lab.runs.audit import Auditing
from lab.runs.directory import RunDirectory, RunFiles
from lab.runs.last_lines import LastLines
from lab.runs.listener import Listener
from lab.topology import Topology


class Heard:
    """Of one job, from its beginning."""

    def __init__(
        self, directory: RunDirectory, topology: Topology, listeners: Sequence[Listener]
    ) -> None:
        self.last_lines = LastLines()
        self.auditing = Auditing(topology, self._tell)
        self._directory = directory
        self._listeners = listeners
        (directory.path / "events.jsonl").unlink(missing_ok=True)  # read from the start each time
        self._files = RunFiles(directory)
        self._restart = -1

    def log(self, node: str, rank: int, stream: str, text: str) -> None:
        """Of a rank's output, which is in its own file."""
        self.last_lines.log(rank, stream, text)
        for listener in self._listeners:
            listener.log(node, rank, stream, text)

    def event(self, message: Message) -> None:
        """Of a rank."""
        if message["type"] == "started" and message["restart"] > self._restart:
            if self._restart >= 0:
                self.last_lines.clear()
                self._tell({"type": "restart", "because": "the job was queued anew"})
            self._restart = message["restart"]
            run = {"type": "run", "id": self._directory.id, "master": None}
            self._tell(run | {"restart": self._restart})
        if message["type"] == "audit":  # many, and of interest to the judges only
            self.auditing.event(message)
        elif message["type"] not in ("state", "progress", "asked"):  # for the judge of the end
            self._tell(message)

    def _tell(self, message: Message) -> None:
        self.auditing.event(message)
        self._files.event(message)
        for listener in self._listeners:
            listener.event(message)

    def close(self) -> None:
        """It is over."""
        self._files.close()
