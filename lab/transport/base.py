"""What a place to run must be able to do: the only thing in which local, docker and ssh differ.

The run controller speaks to nodes through a `Transport` and to the command it started there
through a `Channel`, and knows nothing else about where they are.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol

from lab.channel import Channel, Progress
from lab.topology import Node, Topology


class Transport(Protocol):
    """The nodes of one topology, in one kind of place."""

    topology: Topology
    keeps_warm: bool
    """Whether nodes keep a process with torch imported between runs, so that ranks start fast."""

    silence: float | None
    """Seconds without a word after which an agent takes its controller for gone; None: in this
    kind of place the end of its stdin always comes."""

    def up(self, progress: Progress, run_id: str | None = None) -> None:
        """Bring all nodes up; does nothing to those that are up already and as the topology says.

        `run_id` names the run that brings them up, where no `lab up` has done so.
        """

    def down(self, progress: Progress) -> None:
        """Remove all nodes and everything that was made for them."""

    def release(self) -> None:
        """Remove the nodes that this object's `up` made, unless somebody else uses them now.

        For a run that was interrupted: what it brought up goes with it.
        """

    def start(
        self,
        node: Node,
        argv: Sequence[str],
        *,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        tty: bool = False,
    ) -> Channel:
        """Start a command on a node. `cwd` defaults to the caller's working directory there."""

    def alive(self, node: Node) -> bool:
        """Whether commands can be started on the node.

        Raises:
            LabError: it cannot be said, since the engine does not answer.
        """

    def python(self, node: Node) -> Sequence[str]:
        """The argv prefix that runs the node's Python; with what `start` adds it finds `lab`."""

    def place(self, node: Node, path: Path) -> str:
        """Where the node has what is at that path here, in the working directory."""

    def bring_back(self, run_dir: Path, folder: Path, collect: Sequence[str] = ()) -> None:
        """Bring what ranks have left in the run directory here, where nodes have one of their own.

        Also what the patterns `collect` mean in `folder`, where the ranks started: it gets into the
        folders of the nodes in the run directory.

        Raises:
            LabError: it cannot be written here.
        """

    def address(self, node: Node) -> str:
        """The name or address by which the other nodes reach this one."""

    def default_env(self, node: Node) -> Mapping[str, str]:
        """Variables that ranks need in this kind of place and the topology does not say."""
