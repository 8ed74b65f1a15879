"""One command on all nodes at once, and who answered the same."""

from collections.abc import Sequence
from dataclasses import dataclass

from lab.channel import NOT_FOUND, Channel
from lab.errors import EXIT_FAILURE, LabError
from lab.threads import side_by_side
from lab.topology import Node
from lab.transport.base import Transport

PARALLEL = 64
"""Nodes that are asked at the same time."""


@dataclass(frozen=True)
class Answer:
    """What a command wrote and how it ended."""

    output: bytes
    """Both streams, in the order in which they came."""
    exit_code: int
    problem: str | None = None
    """Why it could not be started, or how it was lost."""


def run_everywhere(transport: Transport, argv: Sequence[str]) -> dict[str, Answer]:
    """Run a command on every node; the answers by node, in node-rank order."""
    channels: list[Channel] = []

    def one(node: Node) -> Answer:
        try:
            if not transport.alive(node):
                return Answer(b"", EXIT_FAILURE, "it is not up")
            channel = transport.start(node, argv)
        except LabError as error:
            return Answer(b"", EXIT_FAILURE, str(error))
        except OSError as error:  # on this machine itself
            return Answer(b"", NOT_FOUND, f"{argv[0]} cannot be run: {error.strerror}")
        channels.append(channel)
        output = b""
        try:
            channel.close_stdin()
            for _, data in channel.output():
                output += data
            return Answer(output, channel.wait())
        except (LabError, OSError) as error:
            return Answer(output, EXIT_FAILURE, str(error))
        finally:
            channel.close()

    nodes = transport.topology.nodes
    try:
        answers = side_by_side(one, nodes, PARALLEL)
    except BaseException:  # Ctrl-C
        for channel in channels:
            channel.close()
        raise
    return {node.name: answer for node, answer in zip(nodes, answers, strict=True)}


def grouped(answers: dict[str, Answer]) -> list[tuple[str, Answer]]:
    """Each different answer once, with the nodes that gave it as a node set: `node[0-2]`.

    The order is that of the first node of each.
    """
    from ClusterShell.NodeSet import RESOLVER_NOGROUP, NodeSet

    names: dict[Answer, list[str]] = {}
    for name, answer in answers.items():
        names.setdefault(answer, []).append(name)
    return [
        (str(NodeSet.fromlist(group, resolver=RESOLVER_NOGROUP)), answer)
        for answer, group in names.items()
    ]
