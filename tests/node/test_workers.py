"""torchrun's workers, seen by the agent, when they go at a bad moment."""

import contextlib
import json
import os
import selectors
import socket
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest

from lab.node.pipes import STREAMS, Pipes
from lab.node.worker import PLACE, address
from lab.node.workers import Owner, Place, Workers


@dataclass
class Agent:
    """As much of an agent as workers need."""

    command: str = "script.py"
    gone: int = 0
    reported: list[dict[str, Any]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.selector = selectors.DefaultSelector()
        owner = Owner(
            order=lambda _place: ({"command": self.command}, os.open(os.devnull, os.O_RDONLY)),
            started=self.started,
            ended=lambda rank, code: self.reported.append({"rank": rank, "code": code}),
            failed=lambda message: self.reported.append({"error": message}),
            gone=self.on_gone,
        )
        self.workers = Workers(
            self.selector, Pipes(self.selector, lambda *_, **__: None, ""), owner
        )
        self.name = self.workers.listen(8)

    def started(self, rank: int, pid: int, _place: Place) -> None:
        self.reported.append({"rank": rank, "pid": pid})

    def on_gone(self) -> None:
        self.gone += 1

    def step(self) -> None:
        for key, _ in self.selector.select(timeout=10):
            key.data()


@pytest.fixture
def agent() -> Iterator[Agent]:
    agent = Agent()
    yield agent
    agent.workers.close()
    for key in list(agent.selector.get_map().values()):
        with contextlib.suppress(OSError):
            os.close(key.fd)
    agent.selector.close()


def worker(agent: Agent) -> socket.socket:
    """A worker that has told its place."""
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    connection.connect(address(agent.name))
    pipes = [os.pipe() for _ in STREAMS]
    place = {"worker": os.getpid(), **dict.fromkeys(PLACE, "0")}
    reads = [read for read, _ in pipes]
    socket.send_fds(connection, [json.dumps(place).encode() + b"\n"], reads)
    for fd in (end for ends in pipes for end in ends):
        os.close(fd)
    return connection


def test_a_worker_that_goes_before_it_hears_what_to_run(agent: Agent) -> None:
    worker(agent).close()
    agent.step()  # it comes
    while not agent.gone:
        agent.step()
    assert not agent.workers


def test_a_worker_that_was_heard_out_of_turn(agent: Agent) -> None:
    worker(agent).close()
    agent.step()
    events = agent.selector.select(timeout=10)
    agent.workers.listen_to_all()  # torchrun has ended
    for key, _ in events:
        key.data()
    assert agent.gone == 1


def test_a_long_command_arrives_whole(agent: Agent) -> None:
    agent.command = "x" * (1 << 20)
    with worker(agent) as connection:
        agent.step()
        pid = os.fork()
        if pid == 0:  # the worker, who reads meanwhile
            line = b""
            while data := connection.recv(1 << 16):
                line += data
                if line.endswith(b"\n"):
                    break
            os._exit(json.loads(line)["command"] != agent.command)
        agent.step()
        assert os.waitpid(pid, 0)[1] == 0
