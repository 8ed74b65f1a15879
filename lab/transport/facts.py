"""What the nodes of a topology tell of themselves: `lab.node.facts`, on all of them at once."""

import contextlib
import json
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from lab.channel import NOT_FOUND, Channel
from lab.deploy.layout import Layout
from lab.deploy.program import program, start_line
from lab.errors import LabError
from lab.node.facts import CLOCK
from lab.threads import side_by_side
from lab.topology import Node
from lab.transport.base import Transport

PARALLEL = 64
OLDEST_PYTHON = (3, 7)
CLOCK_TRIES = 3
"""How often the time is asked for; the quickest answer counts."""


@dataclass(frozen=True)
class NodeFacts:
    """One node, as far as it could be asked."""

    node: str
    reached_by: str
    problem: str | None = None
    """Why there are no facts."""
    facts: dict[str, Any] | None = None
    """What `lab.node.facts.collect` returns."""
    clock_skew: float | None = None
    """Seconds by which its clock is ahead of ours."""
    clock_unsure: float | None = None
    """Seconds by which that may be wrong: half the way there and back."""

    def as_data(self) -> dict[str, Any]:
        """For programs."""
        head = {"node": self.node, "address": self.reached_by, "reachable": self.facts is not None}
        if self.facts is None:
            return {**head, "problem": self.problem}
        clock = {"clock_skew": self.clock_skew, "clock_unsure": self.clock_unsure}
        return {**head, **self.facts, **clock}


def gather(transport: Transport, folder: str) -> list[NodeFacts]:
    """Ask all nodes side by side, by node rank; `folder` is the one whose disk counts."""

    def one(node: Node) -> NodeFacts:
        try:
            return _ask(transport, node, folder)
        except (LabError, OSError, TimeoutError, ValueError) as error:
            return NodeFacts(node.name, transport.address(node), problem=str(error))

    nodes = transport.topology.nodes
    return side_by_side(one, nodes, PARALLEL)


def _ask(transport: Transport, node: Node, folder: str) -> NodeFacts:
    problem = "there is no Python"
    for channel in pythons(transport, node):
        try:
            channel.send(program(["lab.node.memory", "lab.node.facts"], OLDEST_PYTHON))
            channel.send(json.dumps(folder).encode() + b"\n")
            answers = messages(channel)
            facts = next(answers, None)
            if facts is None:
                if channel.wait(timeout=10) == NOT_FOUND:
                    continue
                problem = "its Python does not work"
            elif facts.pop("type") == "too-old":
                problem = f"its Python is {facts['python']}, which is too old to be asked"
            else:
                skew, unsure = _clock(channel, answers)
                address = transport.address(node)
                return NodeFacts(node.name, address, None, facts, skew, unsure)
        finally:
            channel.close()
    raise LabError(problem)


def pythons(transport: Transport, node: Node) -> Iterator[Channel]:
    """The node's Pythons, waiting for a program, the one that ranks would have first.

    Raises:
        LabError: the node cannot be reached.
    """
    if transport.topology.on == "ssh":
        from lab.transport.ssh import SshTransport

        assert isinstance(transport, SshTransport)
        deployed = f"{Layout.of(transport.topology, transport.workdir).current}/venv/bin/python"
        for python in (deployed, transport.topology.ssh.python):
            yield transport.start_bare(node, start_line(python))
    else:
        if not transport.alive(node):
            raise LabError("it is not up")
        (python,) = transport.python(node)
        yield transport.start(node, start_line(python), cwd="/")


def messages(channel: Channel, errors: bytearray | None = None) -> Iterator[dict[str, Any]]:
    """What a program says there, one JSON document a line; a shell's greeting is passed over.

    What comes on stderr is appended to `errors`.
    """
    pending = b""
    for stream, data in channel.output():
        if stream == "err" and errors is not None:
            errors += data
        elif stream == "out":
            *lines, pending = (pending + data).split(b"\n")
            for line in lines:
                message = None
                with contextlib.suppress(ValueError):
                    message = json.loads(line)
                if isinstance(message, dict):
                    yield message


def _clock(channel: Channel, answers: Iterator[dict[str, Any]]) -> tuple[float, float]:
    best = (0.0, float("inf"))
    for _ in range(CLOCK_TRIES):
        asked = time.time()
        channel.send(CLOCK)
        answer = next(answers, None)
        if answer is None:
            raise LabError("its Python has ended while it was asked for the time")
        theirs = answer["time"]
        answered = time.time()
        unsure = (answered - asked) / 2
        if unsure < best[1]:
            best = (theirs - (asked + answered) / 2, unsure)
    return best
