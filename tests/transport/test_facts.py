"""What nodes tell of themselves, where they stop in the middle of it."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from lab.node.facts import CLOCK
from lab.topology import Node, parse_topology
from lab.transport.facts import gather
from lab.transport.local import LocalChannel, LocalTransport

ENDS = f"""
import sys
print('{{"type": "facts"}}', flush=True)
for line in sys.stdin.buffer:
    if line == {CLOCK!r}:
        break
"""


class Ending(LocalTransport):
    """A node whose Python tells its facts, and ends at the next question."""

    def start(self, node: Node, argv: Sequence[str], **how: Any) -> LocalChannel:
        """Start that Python, whatever is to be started."""
        return super().start(node, [*self.python(node), "-c", ENDS], **how)


def test_a_python_that_ends_at_the_last_question(tmp_path: Path) -> None:
    nodes = Ending(parse_topology("on: local\nnodes: 1"), tmp_path)
    (told,) = gather(nodes, str(tmp_path))
    assert told.facts is None
    assert told.problem == "its Python has ended while it was asked for the time"
