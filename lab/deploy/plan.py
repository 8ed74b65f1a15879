"""What is to be deployed, who watches it, and what came of it: plain data."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from lab.channel import Progress
from lab.deploy.layout import Layout, Release
from lab.deploy.packages import Packages
from lab.deploy.requirements import Requirements
from lab.deploy.tree import Tree, read_tree
from lab.topology import Topology

SHORT_STEPS = ("connecting", "staged", "switched", "up to date", "checked", "failed")
"""Those that are over as soon as they are said, or that an error speaks of."""


class Watcher(Protocol):
    """Who is shown how a deployment goes; called from several threads."""

    def step(self, node: str, words: str, done: int, total: int) -> None:
        """What is done for a host just now, and how many bytes of how many are sent."""

    def warn(self, text: str) -> None:
        """Something that the user should know, in one line."""


class Told:
    """A watcher that passes on what takes time, for a progress line."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._last = ""

    def step(self, node: str, words: str, done: int, total: int) -> None:
        """See `Watcher`."""
        line = f"{node}: {words}"
        if words not in SHORT_STEPS and line != self._last:
            self._last = line
            self._progress(line)

    def warn(self, text: str) -> None:
        """See `Watcher`."""
        self._progress(f"warning: {text}")


@dataclass(frozen=True)
class Plan:
    """What is to be on the hosts; pure data, so that it can be looked at first."""

    topology: Topology
    layout: Layout
    tree: Tree
    packages: Packages

    @classmethod
    def of(cls, topology: Topology, folder: Path, requirements: Requirements | None) -> "Plan":
        """Look at a folder.

        Raises:
            LabError: its files cannot be had.
        """
        tree = read_tree(folder)
        return cls(topology, Layout.of(topology, folder), tree, Packages.read(requirements))


@dataclass
class Outcome:
    """What a deployment did."""

    content: str
    """The version's hash."""
    releases: dict[str, Release] = field(default_factory=dict)
    """Where it is on each host, by node."""
    changed: list[str] = field(default_factory=list)
    """The hosts that did not have it before."""
    sent: int = 0
    """Bytes of files and packages, all hosts together."""
    seconds: float = 0.0
