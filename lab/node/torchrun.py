"""One node's ranks as workers of PyTorch's own elastic agent: `--engine torchrun`.

torchrun decides when workers start, with which ranks, and when they start again
(torch/distributed/run.py, elastic/agent/server/local_elastic_agent.py). What it does not give,
exact exit codes and logs by rank, comes over a socket from `lab.node.worker`, the parent of a rank.

Without `min_nodes` the rendezvous is static: ranks are those of the topology, and torchrun starts
no worker again, since a node's torchrun would do it without telling the others. With `min_nodes` it
is c10d: torchrun numbers the nodes, and forms a new world without those that are lost.
"""

import contextlib
import json
import os
import secrets
import selectors
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from lab.node import launcher, processes, worker
from lab.node.environment import lab_environment, launch_environment
from lab.node.pipes import CHUNK, STREAMS, Pipes
from lab.node.placeholders import fill
from lab.node.protocol import NodeJob

STORE_TIMEOUT = 60
"""Seconds in which a node must reach the rendezvous: all begin at the same time."""
KEEP_ALIVE = {"keep_alive_interval": 1, "keep_alive_max_attempt": 6}
"""Seconds between two signs of life, and how many may be missing before a node counts as lost."""
LAST_CALL = 3
"""Seconds for the other nodes to join when the fewest that will do are there."""
OWN_STORE_EACH_TIME = "TORCH_DISABLE_SHARE_RDZV_TCP_STORE"
"""Each world gets a store of its own. torch 2.13 would share one between worlds, with the keys of
the world before still in it, and would go on naming it to others when its node is lost
(dynamic_rendezvous.py, next_rendezvous)."""


@dataclass
class Worker:
    """A worker of torchrun, as far as it has told of itself."""

    connection: socket.socket
    received: bytes = b""
    fds: list[int] = field(default_factory=list)
    place: Mapping[str, Any] = field(default_factory=dict)
    pid: int | None = None
    """Of the rank."""
    code: int | None = None

    @property
    def rank(self) -> int:
        """Its global rank; it has one when it has told its place."""
        return int(self.place["RANK"])


class Torchrun:
    """torchrun on one node, and the workers that it starts."""

    def __init__(
        self,
        job: NodeJob,
        selector: selectors.BaseSelector,
        pipes: Pipes,
        report: Callable[..., None],
        report_exit: Callable[[int, int], None],
    ) -> None:
        """`report` sends a message to the controller, `report_exit` the end of a rank."""
        self._job = job
        self._selector = selector
        self._pipes = pipes
        self._report = report
        self._report_exit = report_exit
        self._workers: dict[int, Worker] = {}  # by descriptor of the connection
        self._launcher: subprocess.Popen[bytes] | None = None
        self._code: int | None = None
        self._ending = False
        self._folder: str | None = None
        self._files = Path(job.run_dir) / job.node

    def prepare(self, ready: Callable[[], None]) -> None:
        """Have torchrun import what it needs; `ready` is called when it could begin.

        Raises:
            OSError: it cannot be started.
        """
        job = self._job
        self._files.mkdir(parents=True, exist_ok=True)
        address = self._listen()
        env = launch_environment(os.environ, job.env, job.slots) | lab_environment(
            node=job.node, topology=job.topology, run_id=job.run_id, run_dir=job.run_dir
        )
        env[worker.SOCKET] = address
        if job.min_nodes is not None:
            env[OWN_STORE_EACH_TIME] = "1"
        with self._log.open("ab") as log:
            self._launcher = subprocess.Popen(
                [sys.executable, "-P", launcher.__file__],
                cwd=job.cwd,
                env=env,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                start_new_session=True,
                preexec_fn=processes.die_with(os.getpid()),  # safe: the agent has one thread
            )
        self._launcher.returncode = 0  # the agent reaps it; Popen must not try
        assert self._launcher.stdout is not None
        stdout = self._launcher.stdout.fileno()

        def on_output() -> None:
            self._selector.unregister(stdout)
            if os.read(stdout, CHUNK) == launcher.READY:
                ready()

        self._selector.register(stdout, selectors.EVENT_READ, on_output)

    def start(self, master_addr: str, master_port: int, addr: str) -> None:
        """Have torchrun begin. `addr` is where the other nodes reach this one."""
        assert self._launcher is not None
        assert self._launcher.stdin is not None
        arguments = self._arguments(_bracketed(master_addr), master_port, addr)
        with contextlib.suppress(BrokenPipeError):  # it has ended, which is told elsewhere
            self._launcher.stdin.write(json.dumps(arguments).encode() + b"\n")
            self._launcher.stdin.close()

    def _arguments(self, master_addr: str, master_port: int, addr: str) -> list[str]:
        job = self._job
        if job.min_nodes is None:
            options = {
                "nnodes": job.nnodes,
                "node-rank": job.node_rank,
                "master-addr": master_addr,
                "master-port": master_port,
                "rdzv-conf": f"timeout={STORE_TIMEOUT}",
                "max-restarts": 0,
            }
        else:
            timeouts = {"read_timeout": STORE_TIMEOUT, "last_call_timeout": LAST_CALL}
            settings = {"is_host": int(job.node_rank == 0), **timeouts, **KEEP_ALIVE}
            options = {
                "nnodes": f"{job.min_nodes}:{job.nnodes}",
                "rdzv-backend": "c10d",
                "rdzv-endpoint": f"{master_addr}:{master_port}",
                "rdzv-conf": ",".join(f"{name}={value}" for name, value in settings.items()),
                "local-addr": addr,
                "max-restarts": job.max_restarts,
            }
        options |= {
            "nproc-per-node": job.slots,
            "rdzv-id": job.run_id,
            "log-dir": self._files / "torchrun",
        }
        words = [f"--{name}={value}" for name, value in options.items()]
        return [*words, "--no-python", *worker.argv()]

    @property
    def pid(self) -> int | None:
        """Of torchrun itself, until it has been reaped."""
        return None if self._launcher is None or self._code is not None else self._launcher.pid

    @property
    def groups(self) -> list[int]:
        """The process groups that run: torchrun's and those of the ranks and their parents."""
        pids = [self.pid]
        for known in self._workers.values():
            pids += [known.pid, known.place.get("worker")]
        return [pid for pid in pids if pid is not None]

    def terminate(self) -> None:
        """Have torchrun end its workers, and itself when they have ended."""
        self._ending = True
        if self.pid is not None:
            # Without workers it has nothing to end in order, and may not hear in its barrier.
            processes.signal_group(self.pid, signal.SIGTERM if self._workers else signal.SIGKILL)

    def on_end(self, code: int) -> None:
        """Take note that torchrun has been reaped; what it leaves behind ends too."""
        self._code = code
        for known in list(self._workers.values()):
            self._on_words(known)  # what its workers said before
        for pid in self.groups:
            processes.signal_group(pid, signal.SIGKILL)
        self._look_for_end()

    def close(self) -> None:
        """Remove what was there for the workers."""
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)

    # Workers

    def _listen(self) -> str:
        """The socket that workers find, as `worker.address` takes it."""
        name = f"@multinode-lab-worker-{secrets.token_hex(8)}"
        if sys.platform != "linux":
            self._folder = tempfile.mkdtemp(prefix="multinode-lab-")  # ours alone
            name = f"{self._folder}/workers"
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        listener.bind(worker.address(name))
        listener.listen(self._job.slots)
        self._selector.register(
            listener, selectors.EVENT_READ, lambda: self._accept(listener.accept()[0])
        )
        return name

    def _accept(self, connection: socket.socket) -> None:
        if sys.platform == "linux" and _peer_uid(connection) != os.getuid():
            connection.close()
            return
        connection.setblocking(False)
        known = self._workers[connection.fileno()] = Worker(connection)
        self._selector.register(connection, selectors.EVENT_READ, partial(self._on_words, known))

    def _on_words(self, known: Worker) -> None:
        """Take all that a worker has said until now."""
        while True:
            try:
                data, fds, _, _ = socket.recv_fds(known.connection, CHUNK, len(STREAMS))
            except BlockingIOError:
                return
            except OSError:
                data, fds = b"", []
            if not data:
                self._on_gone(known)
                return
            known.fds += fds
            *lines, known.received = (known.received + data).split(b"\n")
            for line in lines:
                self._on_message(known, json.loads(line))

    def _on_message(self, known: Worker, message: Mapping[str, Any]) -> None:
        if "worker" in message:
            known.place = message
            self._pipes.add(known.rank, dict(zip(STREAMS, known.fds, strict=True)))
            known.connection.sendall(json.dumps(self._order(message)).encode() + b"\n")
        elif "pid" in message:
            known.pid = message["pid"]
            world = {
                "master": f"{known.place['MASTER_ADDR']}:{known.place['MASTER_PORT']}",
                "nodes": int(known.place["GROUP_WORLD_SIZE"]),
                "ranks": int(known.place["WORLD_SIZE"]),
                "restarts": int(known.place["TORCHELASTIC_RESTART_COUNT"]),
            }
            self._report("started", rank=known.rank, pid=known.pid, world=world)
        else:
            known.code = message["code"]
            self._report_exit(known.rank, message["code"])

    def _order(self, place: Mapping[str, str]) -> dict[str, Any]:
        """What a worker is to run."""
        job = self._job
        env: dict[str, str | None] = {
            "NODE_RANK": place["GROUP_RANK"],
            "NNODES": place["GROUP_WORLD_SIZE"],
            worker.SOCKET: None,
        }
        if job.min_nodes is None:  # it is not torchrun that begins again
            env["TORCHELASTIC_RESTART_COUNT"] = str(job.restart_count)
            env["TORCHELASTIC_MAX_RESTARTS"] = str(job.max_restarts)
        else:
            env[OWN_STORE_EACH_TIME] = job.env.get(OWN_STORE_EACH_TIME)
        placeholders = {
            "node_rank": place["GROUP_RANK"],
            "nnodes": place["GROUP_WORLD_SIZE"],
            "nproc": place["LOCAL_WORLD_SIZE"],
            "world_size": place["WORLD_SIZE"],
            "master_addr": place["MASTER_ADDR"],
            "master_port": place["MASTER_PORT"],
            "run_dir": job.run_dir,
        }
        command = fill(job.command, placeholders)
        return {"command": command, "python": job.python, "cwd": job.cwd, "env": env}

    def _on_gone(self, known: Worker) -> None:
        self._selector.unregister(known.connection)
        del self._workers[known.connection.fileno()]
        known.connection.close()
        if known.pid is not None and known.code is None:  # killed, and the rank with it
            processes.signal_group(known.pid, signal.SIGKILL)
            self._report_exit(known.rank, 128 + signal.SIGKILL)
        if self._ending and not self._workers:
            self.terminate()
        self._look_for_end()

    # The end

    @property
    def has_ended(self) -> bool:
        """Whether torchrun and all its workers have."""
        return self._code is not None and not self._workers

    def _look_for_end(self) -> None:
        if self.has_ended:
            self._report("torchrun", code=self._code, message=self._last_words())

    @property
    def _log(self) -> Path:
        return self._files / "torchrun.err"

    def _last_words(self) -> str | None:
        """The line of torchrun's log that tells best why it ended, if it did not end well."""
        if self._code == 0:
            return None
        lines = self._log.read_text(errors="replace").splitlines()[-100:]
        said = [line for line in lines if line.strip()]
        errors = [line for line in said if _is_error(line)]
        return (errors or said or [f"exit code {self._code}"])[-1].strip()


def _is_error(line: str) -> bool:
    """Whether it is the last line of a traceback."""
    name, colon, _ = line.partition(": ")
    return bool(colon) and name.replace(".", "").isidentifier() and name.endswith("Error")


def _bracketed(addr: str) -> str:
    return f"[{addr}]" if ":" in addr else addr


def _peer_uid(connection: socket.socket) -> int:
    credentials = connection.getsockopt(
        socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i")
    )
    uid: int = struct.unpack("3i", credentials)[1]
    return uid
