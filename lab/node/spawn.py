"""How an agent starts a rank: from nothing, or forked from a process that has torch imported."""

import fcntl
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from lab.node import processes

BOOTSTRAP = Path(__file__).resolve().parent.parent / "rank" / "__main__.py"
"""Run by path, not as a module: a `lab` folder of the user's own must not be taken for ours."""


@dataclass(frozen=True)
class RankStart:
    """What a rank starts with."""

    command: Sequence[str]
    """As after `python`: `script.py ARGS` or `-m MODULE ARGS`."""
    cwd: str
    env: Mapping[str, str]
    stdin: int
    stdout: int
    stderr: int
    events: int
    """The descriptor on which the rank's bootstrap reports, by the name of LAB_EVENTS_FD."""
    python: bool = True
    """Whether the command is for Python; else its first word is the executable."""


Spawn = Callable[[RankStart], int]
"""Starts a rank in a session of its own; its pid. Raises OSError."""


def spawn_cold(start: RankStart) -> int:
    """Start a new interpreter, or the executable that the job names instead of one."""
    bootstrap = [sys.executable, "-u", str(BOOTSTRAP)] if start.python else []
    events = {"LAB_EVENTS_FD": str(start.events)} if start.python else {}
    process = subprocess.Popen(
        [*bootstrap, *start.command],
        cwd=start.cwd,
        env={**start.env, **events},
        stdin=start.stdin,
        stdout=start.stdout,
        stderr=start.stderr,
        pass_fds=[start.events] if start.python else [],
        start_new_session=True,
        preexec_fn=processes.die_with(os.getpid()),  # safe: the agent has one thread
    )
    process.returncode = 0  # the agent reaps its ranks itself; Popen must not try
    return process.pid


class BecomeRank(BaseException):
    """Unwinds the agent's stack in a forked child, up to where the rank's life begins."""

    def __init__(self, command: Sequence[str]) -> None:
        self.command = command


def spawn_fork(start: RankStart) -> int:
    """Fork this process, which has torch imported and no threads.

    In the child it does not return: `BecomeRank` goes up to `lab.node.warm`, which then runs the
    bootstrap at the bottom of the stack, so that the interpreter ends as it always does.
    """
    if not start.python:
        return spawn_cold(start)
    parent = os.getpid()
    begun, beginning = os.pipe()
    pid = os.fork()
    if pid == 0:
        _turn_into_rank(start, parent)
    os.close(beginning)
    os.read(begun, 1)  # its end: the fork has closed its own. Before, it could miss a signal
    os.close(begun)
    return pid


def _turn_into_rank(start: RankStart, parent: int) -> NoReturn:
    """Give a fresh fork what a new process would have: session, signals, descriptors, variables."""
    try:
        os.setsid()
        ask = processes.die_with(parent)
        if ask is not None:
            ask()
        signal.set_wakeup_fd(-1)
        for number in processes.AGENT_SIGNALS:
            signal.signal(number, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.signal(signal.SIGPIPE, signal.SIG_IGN)  # as Python itself sets it
        os.chdir(start.cwd)
        wanted = (start.stdin, start.stdout, start.stderr, start.events)
        # Up and out of the way first: one of them may be a number that another one must get.
        aside = [fcntl.fcntl(fd, fcntl.F_DUPFD, len(wanted)) for fd in wanted]
        for place, fd in enumerate(aside):
            os.dup2(fd, place)
        os.closerange(len(wanted), max(os.sysconf("SC_OPEN_MAX"), 65_536))
        os.environ.clear()
        os.environ.update(start.env)
        os.environ["LAB_EVENTS_FD"] = str(wanted.index(start.events))
    except BaseException:  # noqa: BLE001 - the parent's code must not run twice
        os._exit(1)
    raise BecomeRank(start.command)
