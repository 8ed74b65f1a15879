"""The controller's end of one host while something is deployed there."""

import contextlib
import json
import operator
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from lab.channel import NOT_FOUND, Channel
from lab.deploy.host.files import samples
from lab.deploy.host.wire import CHUNK
from lab.deploy.layout import Layout
from lab.deploy.program import OLDEST_PYTHON, program, start_line
from lab.deploy.rsync import Rsync
from lab.deploy.tree import Source, Tree, in_words
from lab.errors import LabError
from lab.topology import Node

Start = Callable[[Node, list[str]], Channel]
"""Starts a command on a host, in its home and with nothing of lab's around it."""
Say = Callable[[str, int, int], None]
"""Told what is done on a host just now, and how many bytes of how many have been sent for it."""

SILENCE = 60
"""Seconds without a word after which a host takes us for gone while it waits for our decision."""
BEAT = 15
"""Seconds between two such words."""
RSYNC_BEAT = 1.0
"""The same while rsync runs, of which its bytes are shown."""
MODULES = [
    f"lab.deploy.host.{name}" for name in ("wire", "files", "releases", "environments", "session")
]
Message = dict[str, Any]


def hello(layout: Layout) -> Message:
    """Asks what a host is and has."""
    return {"workdir": layout.workdir, "project": layout.project, "silence": SILENCE}


def stage(tree: Tree, environment: Message, entries: list[Any]) -> Message:
    """Asks to have a version beside the one in use."""
    return {"content": tree.content, "environment": environment, "entries": entries}


def _is_alike(new: Source, known: Message) -> bool:
    """Whether an older version has some of the same blocks: else rsync takes longer than to send.

    Where something was put in at the beginning all others have moved, and it is sent as a whole.
    """
    try:
        mine = samples(new.path, known["size"])
    except OSError:
        return False
    return any(map(operator.eq, mine, known["samples"]))


class Visit:
    """A conversation with `lab.deploy.host.session` on a host."""

    def __init__(self, node: Node, start: Start, python: str, say: Say) -> None:
        """Start the program there.

        Raises:
            LabError: the host cannot be reached.
        """
        self.node = node
        self._start = start
        self._python = python
        self._say = say
        self._rsync: Rsync | None = None
        self._channel = start(node, start_line(python))
        self._channel.send(program(MODULES, OLDEST_PYTHON))
        self._stderr = b""
        self._messages = self._read()

    def ask(self, type: str, answer: str, **fields: Any) -> Message:  # noqa: A002 - the field's name
        """Send a message and wait for its answer, while steps are shown.

        Raises:
            LabError: the host refuses, or is gone.
        """
        self.send(type, **fields)
        return self.expect(answer)

    def send(self, type: str, **fields: Any) -> None:  # noqa: A002 - the field's name
        """Send a message."""
        self._channel.send(json.dumps({"type": type, **fields}).encode() + b"\n")

    def expect(self, answer: str) -> Message:
        """The next message of that type.

        Raises:
            LabError: another one comes first, or none.
        """
        for message in self._messages:
            if message["type"] == answer:
                return message
            if message["type"] != "step":
                raise LabError(self._refusal(message))
            self._say(message["words"], 0, 0)
        raise LabError(self._ended())

    def send_files(self, wanted: list[str], sources: Mapping[str, Source], what: str) -> int:
        """Send contents in the order in which the host wants them; how many bytes they have.

        The host waits for as many as have been announced, whatever a file is by now: where they are
        other ones, it says so.

        Raises:
            LabError: one cannot be read any more.
        """
        total, sent = sum(sources[name].size for name in wanted), 0
        for name in wanted:
            path, left = sources[name]
            try:
                file = path.open("rb")
            except OSError as error:
                raise LabError(f"{path} is gone: {error.strerror}") from error
            with file:
                while left:
                    most = min(left, CHUNK)
                    data = file.read(most) or bytes(most)  # it has become shorter
                    self._channel.send(data)
                    left -= len(data)
                    sent += len(data)
                    self._say(what, sent, total)
        return sent

    def update_files(self, older: Message, sources: Mapping[str, Source], what: str) -> int:
        """Have rsync bring files up to date of which the host has older ones, if it is here, too.

        Args:
            older: what the host has said of them.
            sources: where the new ones are, by hash.
            what: said meanwhile.

        Returns:
            How many bytes it has sent. Whether all went well the host sees.
        """
        files = {
            name: sources[name].path
            for name, known in older["older"].items()
            if _is_alike(sources[name], known)
        }
        if files and Rsync.is_here():
            with contextlib.suppress(OSError, LabError):  # then they are sent as a whole
                self._rsync = Rsync(files, older["folder"])
                total = sum(sources[name].size for name in files)
                self._update(self._rsync, what, total)
        self.send("updated")
        return 0 if self._rsync is None else self._rsync.sent

    def _update(self, rsync: Rsync, what: str, total: int) -> None:
        def beat() -> None:
            self.send("alive")
            self._say(what, rsync.sent, total)

        try:
            rsync.run(lambda argv: self._start(self.node, argv), beat, RSYNC_BEAT)
        finally:
            rsync.close()

    def cut(self) -> None:
        """End the conversation in the middle; whoever waits for an answer is told."""
        if self._rsync is not None:
            self._rsync.close()
        self._channel.close()

    def close(self) -> None:
        """Let the program end; what it has staged and not switched to goes."""
        self._channel.close_stdin()
        try:
            for _ in self._messages:
                pass
        except (LabError, OSError, ValueError):
            pass  # it is gone, and all that could be said has been
        self._channel.close()

    def _read(self) -> Iterator[Message]:
        pending = b""
        for stream, data in self._channel.output():
            if stream == "err":
                self._stderr = (self._stderr + data)[-4096:]
                continue
            *lines, pending = (pending + data).split(b"\n")
            for line in lines:
                try:
                    message = json.loads(line)
                except ValueError:
                    message = None
                if not isinstance(message, dict):  # a shell's greeting, say
                    self._stderr += line + b"\n"
                else:
                    yield message

    def _ended(self) -> str:
        code = self._channel.wait(timeout=5)
        words = self._stderr.decode(errors="replace").strip().splitlines() or ["without a word"]
        if code == NOT_FOUND:
            return f"there is no {self._python}: install Python, or name another one (ssh.python)"
        return f"{self._python} ended there with exit code {code}: {words[-1]}"

    def _refusal(self, message: Message) -> str:
        """What stops a host, in words, with the cure."""
        if message["type"] == "too-old":
            return (
                f"{self._python} is Python {message['python']}; it takes "
                f"{'.'.join(map(str, OLDEST_PYTHON))} or newer: install one, and name it "
                "(ssh.python)"
            )
        if message["type"] != "error":
            return f"it says {message['type']}, which nobody asked for"
        kind, reason = message["kind"], message["reason"]
        if kind == "full":
            numbers = reason.split()
            if len(numbers) == 2 and all(number.isdigit() for number in numbers):
                need, free = (in_words(int(number)) for number in numbers)
                reason = f"it takes {need}, and {free} are free"
            return f"its disk is full ({reason}): free some, or name another folder (ssh.workdir)"
        if kind == "unwritable":
            return f"{reason}: let its user write there, or name another folder (ssh.workdir)"
        if kind == "packages":
            return f"the packages do not work there: {reason}"
        if kind == "changed":
            return f"{reason} changed while it was sent: deploy again"
        return str(reason)
