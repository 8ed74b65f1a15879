"""What ranks left in the run directory of their host, brought into the one here."""

import contextlib
import json
import shutil
import sys
import tarfile
from collections.abc import Sequence
from errno import EEXIST
from pathlib import Path, PurePosixPath
from typing import IO

from lab.channel import Channel
from lab.deploy.program import program
from lab.errors import LabError
from lab.node.results import ARRIVED, END
from lab.transport.ssh_channel import SshChannel

LIMIT = 64 << 20
"""Bytes of a file that is brought without being asked for."""


def bring_back(
    channel: SshChannel,
    node: str,
    remote_dir: str,
    run_dir: Path,
    folder: str,
    collect: Sequence[str] = (),
    limit: int = LIMIT,
) -> list[str]:
    """Bring one node's files, and remove those of the run directory there once they are here.

    A file that is here already stays as it is: the node's then goes into the node's own folder.

    Args:
        channel: a Python on the node that awaits a program (`lab.deploy.program.start_line`).
        node: its name.
        remote_dir: the run directory as the node sees it.
        run_dir: the one here.
        folder: where the ranks started, as the node sees it.
        collect: patterns of files there, or in the run directory, to bring whatever their size.
            Those of `folder` get into the node's own folder.
        limit: larger files of the run directory stay there, and are named on stderr.

    Returns:
        The patterns for which there were files.

    Raises:
        LabError: a file cannot be written here, or does not come whole.
    """
    channel.send(program(["lab.node.results"], (3, 11)))
    question = {"run_dir": remote_dir, "limit": limit, "node": node}
    question |= {"folder": folder, "collect": list(collect)}
    channel.send(json.dumps(question).encode() + b"\n")
    try:
        output = Output(channel)
        answer = json.loads(output.readline())
        whole = False
        with tarfile.open(fileobj=output, mode="r|") as archive:  # type: ignore[call-overload]  # it only reads
            for member in archive:
                if member.name == END:
                    whole = True
                else:
                    _keep(archive.extractfile(member), member.name, node, run_dir)
        if not whole:
            raise EOFError("it ends in the middle")
        channel.send(ARRIVED)
        channel.finish()
    except (OSError, EOFError, ValueError, tarfile.TarError) as error:
        raise LabError(f"what {node} left of the run does not come whole: {error}") from error
    finally:
        channel.close()
    for path in answer["left"]:
        print(f"lab: {node} keeps {path}, which is large: --collect brings it", file=sys.stderr)
    found: list[str] = answer["found"]
    return found


class Output:
    """A command's stdout as a file to read from."""

    def __init__(self, channel: Channel) -> None:
        self._chunks = (data for stream, data in channel.output() if stream == "out")
        self._held = bytearray()

    def read(self, size: int) -> bytes:
        """So many bytes; fewer where the output ends before."""
        while len(self._held) < size and (chunk := next(self._chunks, b"")):
            self._held += chunk
        data = bytes(self._held[:size])
        del self._held[:size]
        return data

    def readline(self) -> bytes:
        """Up to the end of a line, or of the output."""
        line = b""
        while not line.endswith(b"\n") and (byte := self.read(1)):
            line += byte
        return line


def _keep(content: IO[bytes] | None, name: str, node: str, run_dir: Path) -> None:
    inside = PurePosixPath(name)
    if content is None or inside.is_absolute() or ".." in inside.parts:
        raise ValueError(f"{name} is not in the run directory")
    for target in (run_dir / inside, run_dir / node / inside):
        target.parent.mkdir(parents=True, exist_ok=True)
        with contextlib.suppress(FileExistsError), target.open("xb") as file:
            shutil.copyfileobj(content, file)
            return
    raise FileExistsError(EEXIST, "there are two of it", str(inside))
