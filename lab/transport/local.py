"""Nodes that are plain processes on this machine, for where no Docker engine is.

On Linux each node has a loopback address of its own (all of 127.0.0.0/8 is there), so that what
binds to one node's address does not get in the way of another's; elsewhere all are 127.0.0.1.
"""

import contextlib
import ipaddress
import os
import selectors
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from lab.channel import Progress, StreamName
from lab.deploy.requirements import Requirements
from lab.errors import UsageError
from lab.node import leftovers
from lab.topology import Node, Topology
from lab.transport.venvs import Venv, ensure_venv

CHUNK = 1 << 16


class LocalChannel:
    """A subprocess, in a session of its own so that the terminal's Ctrl-C does not reach it."""

    def __init__(self, process: subprocess.Popen[bytes], node: str, run_dir: str | None) -> None:
        """`run_dir`: of which run this is the agent on that node, if it is one."""
        self._process = process
        self._node = node
        self._run_dir = run_dir

    def send(self, data: bytes) -> None:
        """See `Channel`."""
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError, ValueError):  # it has gone, or was let go
            self._process.stdin.write(data)
            self._process.stdin.flush()

    def close_stdin(self) -> None:
        """See `Channel`."""
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()

    def resize(self, rows: int, columns: int) -> None:
        """See `Channel`; no command has a terminal of its own here."""

    def output(self) -> Iterator[tuple[StreamName, bytes]]:
        """See `Channel`."""
        assert self._process.stdout is not None
        assert self._process.stderr is not None
        with selectors.DefaultSelector() as selector:
            selector.register(self._process.stdout, selectors.EVENT_READ, "out")
            selector.register(self._process.stderr, selectors.EVENT_READ, "err")
            while selector.get_map():
                for key, _ in selector.select():
                    data = os.read(key.fd, CHUNK)
                    if data:
                        yield key.data, data
                    else:
                        selector.unregister(key.fileobj)

    def wait(self, timeout: float | None = None) -> int:
        """See `Channel`."""
        try:
            code = self._process.wait(timeout)
        except subprocess.TimeoutExpired as error:
            raise TimeoutError(str(error)) from error
        return code if code >= 0 else 128 - code

    def close(self) -> None:
        """See `Channel`."""
        self.close_stdin()
        if self._process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
        if self._process.returncode < 0 and self._run_dir is not None:
            leftovers.end(  # which an agent that was killed could not end itself
                [
                    process
                    for process in leftovers.labelled()
                    if (process.run_dir, process.node) == (self._run_dir, self._node)
                ]
            )


class LocalTransport:
    """All nodes on this machine."""

    keeps_warm = False  # nothing of a node is left between two runs
    silence: float | None = None

    def __init__(
        self, topology: Topology, workdir: Path, requirements: Requirements | None = None
    ) -> None:
        """`requirements` are packages on top of those that lab itself has."""
        self.topology = topology
        self._workdir = workdir
        self._requirements = requirements
        self._venv: Venv | None = None

    def up(self, progress: Progress, run_id: str | None = None) -> None:
        """Install what is required; a node is there as long as something runs on it.

        Raises:
            LabError: it cannot be installed.
        """
        if self._requirements is not None:
            self._venv = ensure_venv(self._requirements, progress)

    def down(self, progress: Progress) -> None:
        """Nothing to do, for the same reason."""

    def release(self) -> None:
        """Nothing to do, for the same reason."""

    def start(
        self,
        node: Node,
        argv: Sequence[str],
        *,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        tty: bool = False,
    ) -> LocalChannel:
        """See `Transport`. A process here has the caller's environment and user."""
        return LocalChannel(
            subprocess.Popen(
                list(argv),
                cwd=cwd or self._workdir,
                env={**self._environment(), **(env or {}), "LAB_NODE": node.name},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                start_new_session=True,
            ),
            node.name,
            (env or {}).get("LAB_RUN_DIR"),
        )

    def _environment(self) -> dict[str, str]:
        """The caller's; the commands of packages that are required come first in it."""
        return {**os.environ, **(self._venv.environment(os.environ) if self._venv else {})}

    def call(self, node: Node, argv: Sequence[str]) -> int:
        """Run a command on the caller's own terminal; its exit code.

        Raises:
            UsageError: there is no such command.
        """
        env = {**os.environ, "LAB_NODE": node.name}
        try:
            code = subprocess.call(list(argv), cwd=self._workdir, env=env)
        except OSError as error:
            raise UsageError(f"{argv[0]} cannot be run: {error.strerror}") from error
        return code if code >= 0 else 128 - code

    def alive(self, node: Node) -> bool:
        """Always: this machine is."""
        return True

    def python(self, node: Node) -> Sequence[str]:
        """The Python that lab itself runs under; with requirements, one that has its packages."""
        return [str(self._venv.python) if self._venv else sys.executable]

    def place(self, node: Node, path: Path) -> str:
        """The same: nodes are on this machine."""
        return str(path)

    def bring_back(self, run_dir: Path, folder: Path, collect: Sequence[str] = ()) -> None:
        """Nothing to do: nodes see it."""

    def address(self, node: Node) -> str:
        """127.0.0.1 + the node's rank on Linux, unless the topology gives one."""
        if node.address is not None:
            return node.address
        rank = self.topology.node_rank(node.name) if sys.platform == "linux" else 0
        return str(ipaddress.IPv4Address("127.0.0.1") + rank)

    def default_env(self, node: Node) -> Mapping[str, str]:
        """Gloo on the loopback interface: the host's name may stand for another, or for none.

        And one thread for each rank where nodes share this machine: with one for each core, which
        is torch's default, threads wait for each other's turn, and steps take ten times as long.
        """
        env = {"GLOO_SOCKET_IFNAME": node.interface or ("lo" if sys.platform == "linux" else "lo0")}
        if self.topology.nnodes > 1:
            env["OMP_NUM_THREADS"] = os.environ.get("OMP_NUM_THREADS", "1")
        return env
