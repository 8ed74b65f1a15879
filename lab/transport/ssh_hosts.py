"""The hosts of one topology: the connections to them, and what they tell of themselves."""

import contextlib
import json
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from threading import Lock
from typing import Any, TypeVar

from lab.channel import NOT_FOUND
from lab.deploy.layout import Layout, Release
from lab.deploy.program import OLDEST_PYTHON, program, start_line
from lab.errors import LabError
from lab.threads import side_by_side
from lab.topology import Node, Topology
from lab.transport.ssh_bundle import bundle
from lab.transport.ssh_channel import SshChannel, remote_command
from lab.transport.ssh_connection import SshConnection
from lab.transport.ssh_settings import SshSettings

PARALLEL = 32
"""Hosts that are talked to at the same time."""

T = TypeVar("T")


@dataclass(frozen=True)
class Host:
    """What a host has told of itself; paths are absolute."""

    python: str
    """The interpreter: of what was deployed there, else the topology's."""
    home: str
    workdir: str
    release: Release | None
    """What was deployed from the controller's folder, if anything was."""
    has_code: bool
    """Whether it has the present code of lab."""
    interface: str | None
    """The one by which it reaches the master; the master: the others."""
    identity: str | None
    """Equal where two names mean one machine."""


class SshHosts:
    """Connections, one for each node, made when first needed and again after one was lost."""

    def __init__(self, topology: Topology) -> None:
        """Read ~/.ssh/config; nothing is connected yet.

        Raises:
            UsageError: a file that the topology names cannot be read.
        """
        self.topology = topology
        self._settings = SshSettings.of(topology.ssh)
        self._connections = {
            node.name: SshConnection(self._target(node), self._settings, called=node.name)
            for node in topology.nodes
        }
        self._locks: dict[str, Lock] = defaultdict(Lock)

    def each(self, ask: Callable[[Node], T]) -> dict[str, T]:
        """Ask all nodes side by side; the answers by node.

        Raises:
            LabError: what they raised, all of them in one.
        """
        answers: dict[str, T] = {}
        errors: list[tuple[str, LabError]] = []

        def one(node: Node) -> None:
            try:
                answers[node.name] = ask(node)
            except LabError as error:
                errors.append((node.name, error))

        side_by_side(one, self.topology.nodes, PARALLEL)
        if errors:
            rank = self.topology.node_rank
            errors.sort(key=lambda one: rank(one[0]))
            raise LabError("\n  ".join(f"{name}: {error}" for name, error in errors))
        return {node.name: answers[node.name] for node in self.topology.nodes}

    def _target(self, node: Node) -> str:
        """What to call a node in order to connect: its name where ~/.ssh/config knows it."""
        known = self._settings.config.base_ssh_config.lookup(node.name)
        if known["hostname"] != node.name or node.address is None:
            return node.name
        return node.address

    def unopened(self, node: Node) -> SshConnection:
        """The connection to a node as it is: not made yet, open, or lost."""
        return self._connections[node.name]

    def connection(self, node: Node) -> SshConnection:
        """The open connection to a node.

        Raises:
            LabError: it cannot be reached.
        """
        with self._locks[node.name]:
            self._connections[node.name].open()
            return self._connections[node.name]

    def address(self, node: Node) -> str:
        """How others reach a node: as the topology says, else ~/.ssh/config, else by its name."""
        if node.address is not None:
            return node.address
        known: str = self._settings.config.base_ssh_config.lookup(node.name)["hostname"]
        return known

    def ask(self, node: Node, layout: Layout, *, make: bool = False) -> Host:
        """Have a node tell of itself; `make` the folders that runs need.

        Raises:
            LabError: it cannot be reached, has no Python that will do, or refuses to be written to.
        """
        question = {
            "workdir": layout.workdir,
            "project": layout.project,
            "code": f"agents/{bundle().name}",
            "towards": self._neighbour(node),
            "make": make,
        }
        for python in (Release(layout.current).python, self.topology.ssh.python):
            answer = self.question(node, ["lab.node.host"], question, python)
            if answer is not None:
                break
        else:
            raise LabError(
                f"{self.connection(node).place} has no {self.topology.ssh.python}: install it, or "
                "name another one (ssh.python)"
            )
        if answer.get("type") == "too-old":
            raise LabError(
                f"{self.topology.ssh.python} on {self.connection(node).place} is Python "
                f"{answer['python']}; it takes {'.'.join(map(str, OLDEST_PYTHON))} or newer: "
                "install one, and name it (ssh.python)"
            )
        if "error" in answer:
            raise LabError(f"{self.connection(node).place}: {answer['error']}")
        release = answer["release"]
        return Host(
            python=answer["executable"],
            home=answer["home"],
            workdir=answer["workdir"],
            release=None if release is None else Release(release),
            has_code=answer["has_code"],
            interface=answer.get("interface"),
            identity=answer.get("identity"),
        )

    def question(
        self,
        node: Node,
        modules: Sequence[str],
        question: Mapping[str, Any],
        python: str | None = None,
    ) -> dict[str, Any] | None:
        """Run a program of ours on a host, which answers a question; None: there is no Python.

        Args:
            node: the host.
            modules: the program, see `lab.deploy.program.program`.
            question: what it finds on stdin.
            python: what runs it; None: the topology's.

        Raises:
            LabError: the host cannot be reached, or the program fails there.
        """
        python = python or self.topology.ssh.python
        channel = SshChannel(self.connection(node), remote_command(start_line(python)))
        channel.send(program(modules, OLDEST_PYTHON))
        channel.send(json.dumps(question).encode() + b"\n")
        code, out, err = channel.finish()
        if code == NOT_FOUND:
            return None
        with contextlib.suppress(ValueError):
            answer = json.loads(out.splitlines()[-1] if out else "")
            if isinstance(answer, dict):
                return answer
        words = (err or out).decode(errors="replace").strip().splitlines() or ["no word"]
        raise LabError(f"{python} on {self.connection(node).place} does not work: {words[-1]}")

    def _neighbour(self, node: Node) -> str | None:
        """Whom it talks to: everybody to the master, the master to the others."""
        others = [other for other in self.topology.nodes if other != node]
        if not others:
            return None
        master = self.topology.master_node
        return self.address(others[0] if node == master else master)
