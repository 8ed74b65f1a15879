"""What Ctrl-C or SIGTERM have left, for commands that bring nodes up or down."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from lab.errors import LabError
from lab.interrupts import Terminated

if TYPE_CHECKING:
    from lab.topology import Topology


@contextmanager
def nodes_told(topology: "Topology") -> Iterator[None]:
    """Where Ctrl-C or SIGTERM end the block, have them say what has become of the nodes."""
    try:
        yield
    except KeyboardInterrupt:
        raise KeyboardInterrupt(*_left(topology)) from None
    except Terminated as end:
        if end.is_told:
            end.left = tuple(_left(topology))
        raise


def _left(topology: "Topology") -> list[str]:
    """What the engine has of them now; nothing where nodes are there by themselves."""
    if topology.on != "docker":
        return []
    from lab.transport.containers import lab_id
    from lab.transport.engine import connect
    from lab.transport.labs import find_labs

    try:
        found = find_labs(connect(None), lab_id(topology, Path.cwd().resolve()))
    except LabError:
        return ["no Docker engine answers now: once one does, lab gc removes what may be left"]
    if any(lab.nodes for lab in found):
        return [f"the nodes of {topology.name} are still up: lab down removes them"]
    return [f"no node of {topology.name} is up"]
