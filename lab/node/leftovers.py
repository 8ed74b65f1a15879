"""What runs left on this node, found by the label in their environment (Linux).

An agent ends all that its ranks started. One that was killed could not, and neither could a
controller that was killed with it. Ranks and what they start have LAB_RUN_ID and LAB_RUN_DIR, so
those that outlived their run can be told from everybody else's processes:

    python -P -m lab.node.leftovers                 print this node's labelled processes, as JSON
    python -P -m lab.node.leftovers --end           end those that such JSON on stdin lists

A process that was forked from a node's warm process shows the warm one's environment: what a killed
agent of that kind leaves is ended by the warm process itself (see `lab.node.warm`).
"""

import contextlib
import json
import os
import signal
import sys
import time
from collections.abc import Collection
from dataclasses import asdict, dataclass
from pathlib import Path

from lab.node.processes import ancestors, started

GRACE = 2.0
"""Seconds between SIGTERM and SIGKILL, and again for the kernel to end what was killed."""
POLL = 0.02
COMMAND_LIMIT = 100
"""Characters of a command line that are worth showing."""


@dataclass(frozen=True)
class Labelled:
    """A process of some run."""

    pid: int
    started: str
    """As `lab.node.processes.started` says it."""
    command: str
    run_dir: str
    """The run directory as the node sees it."""
    node: str

    @property
    def lives(self) -> bool:
        """Whether it still runs, and is no other one of the same pid."""
        return started(self.pid) == self.started


def labelled() -> list[Labelled]:
    """This user's processes that belong to a run, but for the calling one and its ancestors."""
    if sys.platform != "linux":
        return []
    own = {os.getpid(), *ancestors()}
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it has ended meanwhile, or is not ours to look at
            pid = int(folder.name)
            if pid in own or folder.stat().st_uid != os.getuid():
                continue
            since = started(pid)
            env = _environment(folder)
            run_dir = env.get("LAB_RUN_DIR", "")
            if since is None or not run_dir or Path(run_dir).name != env.get("LAB_RUN_ID"):
                continue
            words = (folder / "cmdline").read_bytes().replace(b"\0", b" ").strip()
            command = words.decode(errors="replace")[:COMMAND_LIMIT]
            found.append(Labelled(pid, since, command, run_dir, env.get("LAB_NODE", "")))
    return found


def end(processes: Collection[Labelled]) -> None:
    """Terminate them, and kill those that do not end."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        for process in processes:
            if process.lives:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(process.pid, number)
                    os.kill(process.pid, signal.SIGCONT)  # a stopped process hears nothing
        give_up = time.monotonic() + GRACE
        while any(process.lives for process in processes) and time.monotonic() < give_up:
            time.sleep(POLL)


def _environment(folder: Path) -> dict[str, str]:
    text = (folder / "environ").read_bytes().decode(errors="surrogateescape")
    return {name: value for name, _, value in (pair.partition("=") for pair in text.split("\0"))}


def _main() -> None:
    if sys.argv[1:] == ["--end"]:
        end([Labelled(**fields) for fields in json.load(sys.stdin)])
    else:
        print(json.dumps([asdict(process) for process in labelled()]))


if __name__ == "__main__":
    _main()
