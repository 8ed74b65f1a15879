"""Hosts that are folders of this machine: the real program runs in each, over pipes."""

import os
import subprocess
import sys
import threading
from pathlib import Path

from lab.deploy.deployment import deploy, roll_back
from lab.deploy.plan import Outcome, Plan
from lab.topology import Node, Topology
from lab.transport.local import LocalChannel


class Watched:
    """Keeps what is shown."""

    def __init__(self) -> None:
        self.steps: list[tuple[str, str]] = []
        self.warnings: list[str] = []
        self._lock = threading.Lock()

    def step(self, node: str, words: str, done: int, total: int) -> None:
        with self._lock:
            if self.steps[-1:] != [(node, words)]:
                self.steps.append((node, words))

    def warn(self, text: str) -> None:
        self.warnings.append(text)

    def last(self, node: str) -> str:
        return [words for name, words in self.steps if name == node][-1]


class Hosts:
    """Each node has a home of its own; packages are the same for all, so they are made once."""

    def __init__(
        self, folder: Path, environments: Path, nodes: int = 2, workdir: str = "~/lab"
    ) -> None:
        self.env: dict[str, str] = {}
        """Of what runs on the hosts, beside this process's own."""
        self.project = folder / "project"
        self.project.mkdir()
        self.folder = folder
        ssh = {"python": sys.executable, "workdir": workdir}
        self.topology = Topology.model_validate({"on": "ssh", "nodes": nodes, "ssh": ssh})
        self.watched = Watched()
        for node in self.topology.nodes:
            work = self.home(node.name) / workdir.removeprefix("~/")
            work.mkdir(parents=True)
            (work / "envs").symlink_to(environments)

    def home(self, node: str) -> Path:
        return self.folder / "hosts" / node

    def write(self, **files: str) -> None:
        for name, text in files.items():
            (self.project / name).write_text(text)

    def start(self, node: Node, argv: list[str]) -> LocalChannel:
        process = subprocess.Popen(
            argv,
            cwd="/",
            env={**os.environ, "HOME": str(self.home(node.name)), "LC_ALL": "C", **self.env},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
        return LocalChannel(process, node.name, None)

    def plan(self) -> Plan:
        return Plan.of(self.topology, self.project, None)

    def deploy(self, *, only_check: bool = False) -> Outcome:
        self.watched = Watched()
        return deploy(self.plan(), self.start, self.watched, only_check=only_check)

    def roll_back(self) -> Outcome:
        return roll_back(self.plan(), self.start, self.watched)

    def there(self, node: str = "node0") -> Path:
        """The project's folder on a host."""
        (found,) = (path for path in (self.home(node) / "lab").glob("project-*"))
        return found

    def code(self, node: str = "node0") -> dict[str, str]:
        """The files that are in use on a host, with what is in them."""
        code = self.there(node) / "current" / "code"
        return {
            str(path.relative_to(code)): path.read_text()
            for path in sorted(code.rglob("*"))
            if path.is_file()
        }
