"""Nodes that are hosts of their own, reached over SSH."""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import lab.transport.light_fabric  # noqa: F401 - before paramiko, which imports invoke as well
from lab.channel import Progress
from lab.deploy.layout import Layout, Release
from lab.deploy.program import start_line
from lab.deploy.requirements import Requirements
from lab.errors import LabError, UsageError
from lab.topology import Node, Topology
from lab.transport.ssh_bundle import KEEP, bundle
from lab.transport.ssh_channel import SshChannel, remote_command
from lab.transport.ssh_hosts import Host, SshHosts
from lab.transport.ssh_results import bring_back
from lab.transport.ssh_socket import SILENCE


class SshTransport:
    """The nodes of one topology as hosts; implements `Transport`."""

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
        self.hosts = SshHosts(topology)
        self._told: dict[str, Host] = {}

    def host(self, node: Node) -> Host:
        """What a node has told of itself.

        Raises:
            LabError: it cannot be reached, or has no Python.
        """
        if node.name not in self._told:
            self._told[node.name] = self.hosts.ask(node, self.layout)
        return self._told[node.name]

    def up(self, progress: Progress, run_id: str | None = None) -> None:
        """Connect to all hosts, deploy to them, check that they fit, and give them lab's code.

        Raises:
            LabError: a host cannot take part; says which, and why.
        """
        from lab.deploy.deployment import deploy  # later: `lab exec` does without, and is quick
        from lab.deploy.plan import Plan, Told

        count = self.topology.nnodes
        progress(f"connecting to {count} host{'s' * (count > 1)}")
        hosts = self.hosts.each(lambda node: self.hosts.ask(node, self.layout, make=True))
        _check_machines(hosts)
        plan = Plan.of(self.topology, self.workdir, self._requirements)
        done = deploy(plan, self.start_bare, Told(progress), only_check=not self._deploys)
        self._told = {
            name: replace(hosts[name], release=release, python=release.python)
            for name, release in done.releases.items()
        }
        if not all(host.has_code for host in self._told.values()):
            progress("sending lab's code")
            self.hosts.each(self._send_code)

    def _send_code(self, node: Node) -> None:
        host = self._told[node.name]
        if host.has_code:
            return
        argv = [host.python, "-I", "-c", KEEP, self._code(node)]
        channel = SshChannel(self.hosts.connection(node), remote_command(argv))
        channel.send(bundle().data)
        code, _, err = channel.finish()
        if code != 0:
            words = err.decode(errors="replace").strip().splitlines() or ["no word"]
            raise LabError(
                f"{self.hosts.connection(node).place} does not take lab's code: {words[-1]}"
            )

    def _code(self, node: Node) -> str:
        return f"{self.host(node).workdir}/agents/{bundle().name}"

    def down(self, progress: Progress) -> None:
        """End what lab runs on the hosts. What was deployed stays, and what runs left.

        Raises:
            LabError: a host cannot be reached.
        """
        ended = self.hosts.each(self._leave)
        for name, count in ended.items():
            if count:
                progress(f"ended {count} process{'es' * (count > 1)} of lab's on {name}")
        progress(f"what was deployed stays there, in {self.layout.workdir}")

    def _leave(self, node: Node) -> int:
        modules = [f"lab.node.{name}" for name in ("processes", "leftovers", "warm", "leave")]
        answer = self.hosts.question(node, modules, {"workdir": self.layout.workdir})
        return 0 if answer is None else int(answer.get("ended", 0))  # none, or too old

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
        """See `Transport`. Without `cwd` it is the user's own command, and the host is not asked.

        It starts in what was deployed from here, else in the home, and finds nothing of lab's.
        """
        env = {**(env or {}), "LAB_NODE": node.name}
        if cwd is None:
            places = [Release(self.layout.current).code, "~/"]
            command = remote_command(argv, cwd=places, env=env, begin=not tty)
        else:
            run_dir = env.get("LAB_RUN_DIR")
            folder = None if run_dir is None else f"{run_dir}/{node.name}"
            code = self._code(node)
            command = remote_command(
                argv, cwd=[cwd], env=env, folder=folder, path=code, begin=not tty
            )
        return SshChannel(self.hosts.connection(node), command, tty=tty)

    def start_bare(self, node: Node, argv: Sequence[str]) -> SshChannel:
        """Start a command in the host's home, with nothing of lab's around it.

        Raises:
            LabError: the host cannot be reached.
        """
        return SshChannel(self.hosts.connection(node), remote_command(argv))

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
        known = self.hosts.unopened(node)
        if known.transport is None:
            self.hosts.connection(node)
            return True
        return bool(known.is_connected)

    def python(self, node: Node) -> Sequence[str]:
        """The interpreter of what was deployed there, else the topology's."""
        return [self.host(node).python]

    def bring_back(self, run_dir: Path, folder: Path, collect: Sequence[str] = ()) -> None:
        """See `Transport`. From a host whose connection was lost nothing comes.

        Raises:
            LabError: it cannot be written here, or does not come whole.
        """
        found: set[str] = set()

        def bring(node: Node) -> None:
            known = self.hosts.unopened(node)
            if known.is_connected:
                channel = SshChannel(known, remote_command(start_line(self.host(node).python)))
                places = self.place(node, run_dir), run_dir, self.place(node, folder)
                found.update(bring_back(channel, node.name, *places, collect))

        self.hosts.each(bring)
        for pattern in collect:
            if pattern not in found:
                print(
                    f"lab: warning: --collect {pattern}: no host has such a file", file=sys.stderr
                )

    def address(self, node: Node) -> str:
        """What the topology says, else what ~/.ssh/config does, else the name."""
        return self.hosts.address(node)

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
