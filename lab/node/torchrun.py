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
import selectors
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from lab.node import launcher, processes, worker
from lab.node.environment import lab_environment, launch_environment
from lab.node.pipes import CHUNK, Pipes
from lab.node.placeholders import fill
from lab.node.protocol import NodeJob
from lab.node.stdin import Input
from lab.node.workers import Owner, Place, Workers

STORE_TIMEOUT = 60
"""Seconds in which a node must reach the rendezvous: all begin at the same time."""
KEEP_ALIVE = {"keep_alive_interval": 1, "keep_alive_max_attempt": 6}
"""Seconds between two signs of life, and how many may be missing before a node counts as lost."""
LAST_CALL = 3
"""Seconds for the other nodes to join when the fewest that will do are there."""
LOG_END = 20_000
"""Characters of torchrun's log in which its last words are looked for."""
CAUSED = "The above exception was the direct cause of the following exception:"
"""Of two tracebacks that Python has this between the first tells more."""
OWN_STORE_EACH_TIME = "TORCH_DISABLE_SHARE_RDZV_TCP_STORE"
"""Each world gets a store of its own. torch 2.13 would share one between worlds, with the keys of
the world before still in it, and would go on naming it to others when its node is lost
(dynamic_rendezvous.py, next_rendezvous)."""


class Torchrun:
    """torchrun on one node, and the workers that it starts."""

    def __init__(
        self,
        job: NodeJob,
        selector: selectors.BaseSelector,
        pipes: Pipes,
        stdin: Input,
        report: Callable[..., None],
        report_exit: Callable[[int, int], None],
    ) -> None:
        """`report` sends a message to the controller, `report_exit` the end of a rank."""
        self._job = job
        self._selector = selector
        self._stdin = stdin
        self._report = report
        owner = Owner(
            order=self._order,
            started=self._on_started,
            ended=report_exit,
            failed=lambda message: report("error", message=message),
            gone=self._on_gone,
        )
        self._workers = Workers(selector, pipes, owner)
        self._launcher: subprocess.Popen[bytes] | None = None
        self._code: int | None = None
        self._ending = False
        self._told = False
        self._files = Path(job.run_dir) / job.node

    def prepare(self, ready: Callable[[], None]) -> None:
        """Have torchrun import what it needs; `ready` is called when it could begin.

        Raises:
            OSError: it cannot be started.
        """
        job = self._job
        self._files.mkdir(parents=True, exist_ok=True)
        address = self._workers.listen(job.slots)
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
        own = [] if self.pid is None else [self.pid]
        return [*own, *self._workers.groups]

    @property
    def pids(self) -> dict[int, int]:
        """Of the ranks that run."""
        return self._workers.pids

    def terminate(self) -> None:
        """Have torchrun end its workers, and itself when they have ended."""
        self._ending = True
        if self.pid is not None:
            # Without workers it has nothing to end in order, and may not hear in its barrier.
            processes.signal_group(self.pid, signal.SIGTERM if self._workers else signal.SIGKILL)

    def on_end(self, code: int) -> None:
        """Take note that torchrun has been reaped; what it leaves behind ends too."""
        self._code = processes.as_shell(code)
        self._workers.listen_to_all()  # they spoke before it ended
        for pid in self.groups:
            processes.signal_group(pid, signal.SIGKILL)
        self._look_for_end()

    def close(self) -> None:
        """Remove what was there for the workers."""
        self._workers.close()

    # Workers

    def _order(self, place: Place) -> tuple[dict[str, Any], int]:
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
        command = fill(job.command, {**place, "LAB_RUN_DIR": job.run_dir})
        order = {"command": command, "python": job.python, "cwd": job.cwd, "env": env}
        return order, self._stdin.open(int(place["RANK"]))

    def _on_started(self, rank: int, pid: int, place: Place) -> None:
        world = {
            "master": f"{place['MASTER_ADDR']}:{place['MASTER_PORT']}",
            "nodes": int(place["GROUP_WORLD_SIZE"]),
            "ranks": int(place["WORLD_SIZE"]),
            "restarts": int(place["TORCHELASTIC_RESTART_COUNT"]),
        }
        self._stdin.watch(rank, pid)
        self._report("started", rank=rank, pid=pid, world=world)

    def _on_gone(self) -> None:
        if self._ending and not self._workers:
            self.terminate()
        self._look_for_end()

    # The end

    @property
    def has_ended(self) -> bool:
        """Whether torchrun and all its workers have."""
        return self._code is not None and not self._workers

    def _look_for_end(self) -> None:
        if self.has_ended and not self._told:
            self._told = True
            self._report("torchrun", code=self._code, message=self._last_words())

    @property
    def _log(self) -> Path:
        return self._files / "torchrun.err"

    def _last_words(self) -> str | None:
        """The line of its log that tells best why torchrun ended, if it was not told to."""
        if self._code == 0 or self._ending:
            return None
        log = self._log.read_text(errors="replace")[-LOG_END:]
        cause, _, _ = log.rpartition(CAUSED)
        for text in (cause, log):
            errors = [line for line in text.splitlines() if _is_error(line)]
            if errors:
                return errors[-1]
        return log.rstrip().rpartition("\n")[2] or f"exit code {self._code}"


def _is_error(line: str) -> bool:
    """Whether it is the last line of a traceback."""
    name, colon, _ = line.partition(": ")
    return bool(colon) and name.replace(".", "").isidentifier() and name.endswith("Error")


def _bracketed(addr: str) -> str:
    return f"[{addr}]" if ":" in addr else addr
