"""Nodes that are hosts of their own, reached over SSH."""

import contextlib
import json
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from threading import Lock
from typing import Any, TypeVar

from lab.deploy.deployment import Plan, Told, deploy
from lab.deploy.layout import Layout, Release
from lab.deploy.program import program, start_line
from lab.errors import LabError, UsageError
from lab.topology import Node, Topology
from lab.transport.base import Progress
from lab.transport.requirements import Requirements
from lab.transport.ssh_bundle import KEEP, bundle
from lab.transport.ssh_channel import SshChannel, remote_command
from lab.transport.ssh_connection import SILENCE, SshConnection, SshSettings
from lab.transport.ssh_results import bring_back

PARALLEL = 32
"""Hosts that are talked to at the same time."""
OLDEST_PYTHON = (3, 11)
NOT_FOUND = 127
"""What a shell ends with where there is no such command."""

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


class SshTransport:
    """The nodes of one topology as hosts; implements `Transport`.

    One connection for each, made when it is first needed, and again after it was lost.
    """

    keeps_warm = True
    silence: float | None = SILENCE

    def __init__(
        self,
        topology: Topology,
        workdir: Path,
        requirements: Requirements | None = None,
        *,
        deploy: bool = True,
    ) -> None:
        """Read ~/.ssh/config; nothing is connected yet.

        Args:
            topology: the hosts.
            workdir: what is deployed to them.
            requirements: packages for them on top of torch and lab's own.
            deploy: whether `up` sends what they lack of it; else it is an error if they do.

        Raises:
            UsageError: a file that the topology names cannot be read.
        """
        self.topology = topology
        self.workdir = workdir.resolve()
        self._requirements = requirements
        self._deploys = deploy
        self.layout = Layout.of(topology, self.workdir)
        self._settings = SshSettings.of(topology.ssh)
        self._connections: dict[str, SshConnection] = {}
        self._hosts: dict[str, Host] = {}
        self._locks: dict[str, Lock] = defaultdict(Lock)

    # Reaching hosts

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

        with ThreadPoolExecutor(min(PARALLEL, self.topology.nnodes)) as pool:
            list(pool.map(one, self.topology.nodes))
        if errors:
            rank = self.topology.node_rank
            errors.sort(key=lambda one: rank(one[0]))
            raise LabError("\n  ".join(f"{name}: {error}" for name, error in errors))
        return {node.name: answers[node.name] for node in self.topology.nodes}

    def target(self, node: Node) -> str:
        """What to call a node when connecting: its name where ~/.ssh/config knows it."""
        known = self._settings.config.base_ssh_config.lookup(node.name)
        if known["hostname"] != node.name or node.address is None:
            return node.name
        return node.address

    def connection(self, node: Node) -> SshConnection:
        """The open connection to a node.

        Raises:
            LabError: it cannot be reached.
        """
        with self._locks[node.name]:
            if node.name not in self._connections:
                self._connections[node.name] = SshConnection(self.target(node), self._settings)
            self._connections[node.name].open()
            return self._connections[node.name]

    def host(self, node: Node) -> Host:
        """What a node has told of itself.

        Raises:
            LabError: it cannot be reached, or has no Python.
        """
        if node.name not in self._hosts:
            self._hosts[node.name] = self._ask(node, make=False)
        return self._hosts[node.name]

    def _ask(self, node: Node, make: bool) -> Host:
        for python in (Release(self.layout.current).python, self.topology.ssh.python):
            answer = self._question(node, python, make)
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

    def _question(self, node: Node, python: str, make: bool) -> dict[str, Any] | None:
        """Have `lab.node.host` answer there; None: there is no such Python."""
        question = {
            "workdir": self.layout.workdir,
            "project": self.layout.project,
            "code": f"agents/{bundle().name}",
            "towards": self._neighbour(node),
            "make": make,
        }
        channel = SshChannel(self.connection(node), remote_command(start_line(python)))
        channel.send(program(["lab.node.host"], OLDEST_PYTHON))
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

    # As a transport

    def up(self, progress: Progress, run_id: str | None = None) -> None:
        """Connect to all hosts, deploy to them, check that they fit, and give them lab's code.

        Raises:
            LabError: a host cannot take part; says which, and why.
        """
        count = self.topology.nnodes
        progress(f"connecting to {count} host{'s' * (count > 1)}")
        hosts = self.each(lambda node: self._ask(node, make=True))
        _check_machines(hosts)
        plan = Plan.of(self.topology, self.workdir, self._requirements)
        done = deploy(plan, self.start_bare, Told(progress), only_check=not self._deploys)
        self._hosts = {
            name: replace(hosts[name], release=release, python=release.python)
            for name, release in done.releases.items()
        }
        if not all(host.has_code for host in self._hosts.values()):
            progress("sending lab's code")
            self.each(self._send_code)

    def _send_code(self, node: Node) -> None:
        host = self._hosts[node.name]
        if host.has_code:
            return
        argv = [host.python, "-I", "-c", KEEP, self._code(node)]
        channel = SshChannel(self.connection(node), remote_command(argv))
        channel.send(bundle().data)
        code, _, err = channel.finish()
        if code != 0:
            words = err.decode(errors="replace").strip().splitlines() or ["no word"]
            raise LabError(f"{self.connection(node).place} does not take lab's code: {words[-1]}")

    def _code(self, node: Node) -> str:
        return f"{self.host(node).workdir}/agents/{bundle().name}"

    def down(self, progress: Progress) -> None:
        """See `Transport`."""

    def release(self) -> None:
        """Nothing to do: hosts stay."""

    def start(
        self,
        node: Node,
        argv: Sequence[str],
        *,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        tty: bool = False,
    ) -> SshChannel:
        """See `Transport`. Without `cwd`: in what was deployed, else in the home."""
        host = self.host(node)
        env = {**(env or {}), "LAB_NODE": node.name}
        run_dir = env.get("LAB_RUN_DIR")
        command = remote_command(
            argv,
            cwd=[cwd] if cwd is not None else [self.place(node, self.workdir), host.home],
            env=env,
            folder=None if run_dir is None else f"{run_dir}/{node.name}",
            path=self._code(node),
        )
        return SshChannel(self.connection(node), command, tty=tty)

    def start_bare(self, node: Node, argv: Sequence[str]) -> SshChannel:
        """Start a command in the host's home, with nothing of lab's around it.

        Raises:
            LabError: the host cannot be reached.
        """
        return SshChannel(self.connection(node), remote_command(argv))

    def place(self, node: Node, path: Path) -> str:
        """See `Transport`. Runs have a folder of their own there, beside the versions of the code.

        Raises:
            UsageError: it is not in the working directory.
        """
        host = self.host(node)
        project = f"{host.workdir}/{self.layout.project}"
        try:
            inside = path.resolve().relative_to(self.workdir)
        except ValueError as error:
            raise UsageError(
                f"{path} is not on the hosts: only what is in {self.workdir}"
            ) from error
        if inside.parts[:1] == ("runs",):
            return f"{project}/{inside.as_posix()}"
        release = host.release or Release(f"{project}/current")
        return f"{release.code}/{inside.as_posix()}".removesuffix("/.")

    def alive(self, node: Node) -> bool:
        """See `Transport`: whether the connection stands, or can be made again.

        Raises:
            LabError: it never could.
        """
        known = self._connections.get(node.name)
        if known is None:
            self.connection(node)
            return True
        return bool(known.is_connected)

    def python(self, node: Node) -> Sequence[str]:
        """The interpreter of what was deployed there, else the topology's."""
        return [self.host(node).python]

    def bring_back(self, run_dir: Path) -> None:
        """See `Transport`. From a host whose connection was lost nothing comes.

        Raises:
            LabError: it cannot be written here, or does not come whole.
        """

        def bring(node: Node) -> None:
            known = self._connections.get(node.name)
            if known is not None and known.is_connected:
                channel = SshChannel(known, remote_command(start_line(self.host(node).python)))
                bring_back(channel, node.name, self.place(node, run_dir), run_dir)

        self.each(bring)

    def address(self, node: Node) -> str:
        """What the topology says, else what ~/.ssh/config does, else the name."""
        if node.address is not None:
            return node.address
        known: str = self._settings.config.base_ssh_config.lookup(node.name)["hostname"]
        return known

    def default_env(self, node: Node) -> Mapping[str, str]:
        """The interface that leads to the other nodes, for gloo and nccl."""
        interface = node.interface or self.host(node).interface
        if interface is None:
            return {}
        return {"GLOO_SOCKET_IFNAME": interface, "NCCL_SOCKET_IFNAME": interface}


def _check_machines(hosts: Mapping[str, Host]) -> None:
    """Raises UsageError where two names mean one machine."""
    seen: dict[str | None, str] = {}
    for name, host in hosts.items():
        other = seen.setdefault(host.identity, name)
        if other != name:
            raise UsageError(
                f"{other} and {name} are the same machine: name it once, and give it more slots"
            )
