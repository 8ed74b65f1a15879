"""A run that goes on without the terminal that began it."""

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import typer

from lab import interrupts
from lab.errors import LabError

if TYPE_CHECKING:
    from lab.node.protocol import Message
    from lab.runs.listener import Listener

CONSOLE_LOG = "console.log"
"""In the run directory: what would have been on the terminal."""


class _Started:
    """Listens for the start of the ranks; from then on the terminal is no longer ours."""

    def __init__(self, tell: int) -> None:
        self._tell = tell
        self._told = False

    def log(self, node: str, rank: int, stream: str, text: str) -> None:
        """See `lab.runs.Listener`."""

    def event(self, message: "Message") -> None:
        """See `lab.runs.Listener`."""
        if message["type"] != "run" or self._told:  # a restart begins again
            return
        self._told = True
        sys.stdout.flush()
        sys.stderr.flush()
        run_id = message["id"]
        log = Path("runs") / run_id / CONSOLE_LOG
        file = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
        null = os.open(os.devnull, os.O_RDONLY)
        for descriptor, target in ((null, 0), (file, 1), (file, 2)):
            os.dup2(descriptor, target)
        os.close(file)
        os.close(null)
        os.write(self._tell, run_id.encode())
        os.close(self._tell)


def start_detached(run: "Callable[[Listener], int]") -> None:
    """Run in a session of our own; print the run's id when its ranks have been started.

    `run` gets a listener that must hear of its events, and gives its exit code. Until the ranks
    start, what it writes goes to this terminal, and Ctrl-C reaches it.

    Raises:
        typer.Exit: it ended before the ranks started, with its exit code.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    heard, tell = os.pipe()
    pid = os.fork()  # no thread has been started yet
    if pid == 0:
        os.close(heard)
        _become_controller(run, tell)
    os.close(tell)
    run_id = b""
    try:
        while data := os.read(heard, 4096):
            run_id += data
    except BaseException:  # Ctrl-C or a signal, while the nodes come up
        os.kill(pid, signal.SIGINT)
        os.waitpid(pid, 0)
        raise
    if not run_id:
        _, status = os.waitpid(pid, 0)
        code = os.waitstatus_to_exitcode(status)
        raise typer.Exit(code if code >= 0 else 128 - code)
    print(run_id.decode())


def _become_controller(run: "Callable[[Listener], int]", tell: int) -> NoReturn:
    code = 1
    try:
        os.setsid()
        interrupts.catch()  # though a script's background jobs ignore it: for `lab stop`
        code = run(_Started(tell))
    except LabError as error:
        print(f"lab: error: {error}", file=sys.stderr)
        code = error.exit_code
    except KeyboardInterrupt:
        code = 130
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 1
    except BaseException:  # noqa: BLE001 - the end of this process; nobody else would show it
        import traceback

        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
