"""What torchrun starts as a worker: it has the agent's pipes filled by the real rank, its child.

torchrun makes 1 of all exit codes, so each rank has a parent of ours, which tells the agent how it
ended. It speaks JSON lines with the agent over the socket that the variable `SOCKET` names:

to the agent     its place in the world (`PLACE`), with the reading ends of the rank's pipes
from the agent   ``command``, ``python``, ``cwd``, ``env``: what to run, with the rank's stdin;
                 a null removes a variable
to the agent     ``pid`` of the rank, or ``error``: it cannot be started
to the agent     ``code`` that it ended with, or -n for signal n

It dies with torchrun, and the rank with it (Linux).
"""

import json
import os
import signal
import socket
import sys
from collections.abc import Sequence
from pathlib import Path
from types import FrameType
from typing import Any

from lab.node import processes
from lab.node.pipes import STREAMS
from lab.node.spawn import RankStart, spawn_cold

SOCKET = "LAB_WORKER_SOCKET"
PLACE = (
    *("RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE"),
    *("MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RESTART_COUNT"),
)
"""The variables that say which worker of which world this is."""
FORWARDED = ("SIGTERM", "SIGINT", "SIGHUP", "SIGQUIT", "SIGUSR1", "SIGUSR2")
"""Signals that torchrun hands on to its workers, or may be told to."""


def argv() -> Sequence[str]:
    """The command line of a worker: quick to start, and blind to what is meant for the rank."""
    code = "import sys; sys.path.insert(0, sys.argv[1]); from lab.node.worker import main; main()"
    return [sys.executable, "-I", "-S", "-c", code, str(Path(__file__).resolve().parents[2])]


def address(name: str) -> str:
    """The socket's address: a path, or after an @ a name of Linux's abstract sockets."""
    return "\0" + name[1:] if name.startswith("@") else name


def main() -> None:
    """Start the rank, wait for its end, end as it did."""
    die = processes.die_with(os.getppid())
    if die is not None:
        die()
    agent = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    agent.connect(address(os.environ[SOCKET]))
    pipes = [os.pipe() for _ in STREAMS]
    hello = {"worker": os.getpid(), **{name: os.environ[name] for name in PLACE}}
    socket.send_fds(agent, [_line(hello)], [read for read, _ in pipes])
    order, stdin = _receive(agent)
    try:
        pid = _start(order, stdin, [write for _, write in pipes])
    except OSError as error:
        what = f"{order['command'][0]} cannot be run on this node: {error.strerror}"
        agent.sendall(_line({"error": what}))
        os._exit(1)

    def forward(number: int, _frame: FrameType | None) -> None:
        processes.signal_group(pid, number)

    for name in FORWARDED:
        signal.signal(getattr(signal, name), forward)
    for fd in (stdin, *(end for ends in pipes for end in ends)):
        os.close(fd)
    agent.sendall(_line({"pid": pid}))
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    agent.sendall(_line({"code": code}))
    os._exit(processes.as_shell(code))


def _receive(agent: socket.socket) -> tuple[dict[str, Any], int]:
    """What to run, and a descriptor of the rank's stdin."""
    line = b""
    stdin: list[int] = []
    while not line.endswith(b"\n"):
        data, fds, _, _ = socket.recv_fds(agent, 1 << 16, 1)
        if not data:
            sys.exit("the agent has gone")
        line += data
        stdin += fds
    order: dict[str, Any] = json.loads(line)
    return order, stdin[0]


def _start(order: dict[str, Any], stdin: int, writes: Sequence[int]) -> int:
    out, err, events = writes  # in the order of STREAMS
    env = {**os.environ, **order["env"]}
    return spawn_cold(
        RankStart(
            command=order["command"],
            python=order["python"],
            cwd=order["cwd"],
            env={name: value for name, value in env.items() if value is not None},
            stdin=stdin,
            stdout=out,
            stderr=err,
            events=events,
        )
    )


def _line(message: dict[str, object]) -> bytes:
    return json.dumps(message).encode() + b"\n"
