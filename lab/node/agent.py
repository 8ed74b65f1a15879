"""The agent: starts one node's ranks, reports all they say and do, and leaves nothing behind.

Whoever wants ranks on a node starts `python -P -m lab.node` there as a process and speaks the lines
of `lab.node.protocol` with it (-P: a `lab` folder in the working directory must not be taken for
ours). One thread, one selector; what it holds in memory is bounded: while the
reader of its stdout is slow it stops reading the ranks' output, and the ranks wait in their pipes.
"""

import os
import platform
import selectors
import signal
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from lab.node import memory, processes
from lab.node.environment import environment_of
from lab.node.pipes import CHUNK, STREAMS, Pipes
from lab.node.placeholders import fill
from lab.node.ports import Reservation
from lab.node.probing import Probing
from lab.node.protocol import STOP_GRACE, NodeJob, decode, encode
from lab.node.silence import Silence
from lab.node.spawn import RankStart, Spawn, spawn_cold
from lab.node.stdin import Input
from lab.node.torchrun import Torchrun

BUFFER_LIMIT = 1 << 20
"""Bytes that may wait for the reader of stdout before the agent stops reading the ranks."""
FLUSH_TIMEOUT = 2.0
LONGEST_WAIT = 3600.0
"""Seconds after which to look again at least: the system counts only so many milliseconds."""


class Agent:
    """Drives one `NodeJob` from its `hello` to its `bye`."""

    def __init__(
        self,
        job: NodeJob,
        commands: int,
        reports: int,
        received: bytes = b"",
        spawn: Spawn = spawn_cold,
    ) -> None:
        """`commands` and `reports` are the file descriptors of the protocol's two directions.

        `received` is what has been read from `commands` already; `spawn` starts a rank.
        """
        self.job = job
        self._spawn = spawn
        self._commands = commands
        self._reports = reports
        self._received = received
        self._controller_gone = False
        self._silence = Silence(job.silence)
        self._unsent = bytearray()
        self._ranks: dict[int, int] = {}  # pid -> rank, until it has been reaped
        self._oom_kills = memory.oom_kills()
        self._kill_at: float | None = None
        self._input = Input(job.stdin)
        self._finished = False
        self._port: Reservation | None = None
        self._selector = selectors.DefaultSelector()
        self._pipes = Pipes(self._selector, self._report, job.cwd)
        self._probing = Probing(self._selector, self._report, job.cwd)
        self._torchrun: Torchrun | None = None  # starts the ranks, if not we
        if job.engine == "torchrun":
            self._torchrun = Torchrun(
                job, self._selector, self._pipes, self._input, self._report, self._report_exit
            )

    def run(self) -> None:
        """Serve until all ranks have ended, or stdin ends, or a signal asks for the end."""
        wakeup = self._catch_signals()
        os.set_blocking(self._reports, False)
        os.set_blocking(self._commands, False)
        processes.become_subreaper()
        self._watch(wakeup, lambda: self._on_signals(wakeup))
        self._watch(self._commands, self._on_commands)
        self._prepare()
        self._obey(b"")
        while not self._finished:
            self._step()
        processes.kill_descendants(os.getpid())
        self._pipes.drain()
        if self._port is not None:
            self._port.release()
        if self._torchrun is not None:
            self._torchrun.close()
        self._report("bye", max_rss=processes.peak_memory_kib())
        self._flush()

    def _prepare(self) -> None:
        """Say hello when ranks can be started."""
        if not Path(self.job.cwd).is_dir():
            self._fail(f"the working directory {self.job.cwd} does not exist on this node")
        elif self._torchrun is None:
            self._hello()
        else:
            try:
                self._torchrun.prepare(self._hello)
            except OSError as error:
                self._fail(f"torchrun cannot be started: {error}")

    def _hello(self) -> None:
        port = self.job.port
        if port is not None:
            try:
                self._port = Reservation(port)
            except OSError as error:
                self._fail(str(error))
                return
            port = self._port.port
        self._report(
            "hello",
            pid=os.getpid(),
            host=socket.gethostname(),
            python=platform.python_version(),
            port=port,
        )

    def _start(self, addr: str, port: int) -> None:
        for local_rank in range(self.job.slots):
            rank = self.job.first_rank + local_rank
            env = environment_of(self.job, local_rank, addr, port)
            command = fill(self.job.command, env)
            reads, writes = zip(*(os.pipe() for _ in STREAMS), strict=True)
            stdin = self._input.open(rank)
            try:
                pid = self._spawn(
                    RankStart(
                        command=command,
                        python=self.job.python,
                        cwd=self.job.cwd,
                        env=env,
                        stdin=stdin,
                        stdout=writes[STREAMS.index("out")],
                        stderr=writes[STREAMS.index("err")],
                        events=writes[STREAMS.index("events")],
                    )
                )
            except OSError as error:
                self._fail(f"{command[0]} cannot be run on this node: {error.strerror}")
                return
            for fd in (stdin, *writes):  # not in a `finally`: a fork passes here as a rank
                os.close(fd)
            self._ranks[pid] = rank
            self._input.watch(rank, pid)
            self._report("started", rank=rank, pid=pid)
            self._pipes.add(rank, dict(zip(STREAMS, reads, strict=True)))

    # The loop

    def _step(self) -> None:
        for key, _ in self._selector.select(self._timeout()):
            key.data()
        self._ask_for_input()
        self._probing.look()
        if self._silence.is_too_long:
            self._lose_controller()
            self._fail(f"nothing was heard of the controller for {self.job.silence} s", STOP_GRACE)
        if self._kill_at is not None and time.monotonic() >= self._kill_at:
            self._kill_at = None
            for pid in self._groups():
                processes.signal_group(pid, signal.SIGKILL)
        if self._torchrun is not None and self._torchrun.has_ended:
            self._finished = True

    def _groups(self) -> list[int]:
        """The process groups of ranks, and of torchrun, that have not ended."""
        return [*self._ranks, *(self._torchrun.groups if self._torchrun is not None else ())]

    def _pids(self) -> dict[int, int]:
        """Of the ranks that have not ended."""
        if self._torchrun is not None:
            return self._torchrun.pids
        return {rank: pid for pid, rank in self._ranks.items()}

    def _timeout(self) -> float | None:
        """Seconds until there is something to do though nobody says anything."""
        probing = self._probing.over_at
        times = (self._kill_at, self._input.look_at, self._silence.over_at, probing)
        soonest = min((at for at in times if at is not None), default=None)
        if soonest is None:
            return None
        return min(max(0.0, soonest - time.monotonic()), LONGEST_WAIT)

    def _ask_for_input(self) -> None:
        size = self._input.look()
        if size:
            self._pipes.drain(0)  # what it asked the user comes first
            self._report("stdin", rank=0, size=size)

    def _watch(
        self, fd: int, callback: Callable[[], Any], events: int = selectors.EVENT_READ
    ) -> None:
        self._selector.register(fd, events, callback)

    def _catch_signals(self) -> int:
        signal.signal(signal.SIGPIPE, signal.SIG_IGN)
        return processes.wake_on(*processes.AGENT_SIGNALS)

    def _on_signals(self, wakeup: int) -> None:
        numbers = set(os.read(wakeup, 4096))
        if numbers - {signal.SIGCHLD}:
            self._stop(STOP_GRACE)
        ended = processes.reap()
        for pid, code in ended.items():
            rank = self._ranks.pop(pid, None)
            if rank is not None:
                self._report_exit(rank, code)
            elif self._torchrun is not None and pid == self._torchrun.pid:
                self._torchrun.on_end(code)
        if ended and not self._groups():
            self._finished = True

    def _report_exit(self, rank: int, code: int) -> None:
        self._pipes.end(rank)
        if rank == 0:
            self._input.end()
        number = -code if code < 0 else None
        oom_limit = self._oom_limit() if number == signal.SIGKILL else None
        code = processes.as_shell(code)
        self._report("exit", rank=rank, code=code, signal=number, oom_limit=oom_limit)
        self._probing.on_exit(rank)

    def _oom_limit(self) -> int | None:
        """The memory limit, if the kernel has killed somebody for it since we last looked."""
        before, self._oom_kills = self._oom_kills, memory.oom_kills()
        return memory.memory_limit() if self._oom_kills > before else None

    # What comes from the controller

    def _on_commands(self) -> None:
        data = os.read(self._commands, CHUNK)
        self._silence.broken()
        if not data:  # the controller has gone, or wants us to
            self._lose_controller()
            self._stop(STOP_GRACE)
        self._obey(data)

    def _lose_controller(self) -> None:
        self._controller_gone = True
        self._silence.forget()
        self._selector.unregister(self._commands)

    def _obey(self, data: bytes) -> None:
        *lines, self._received = (self._received + data).split(b"\n")
        for line in lines:
            message = decode(line)
            if message["type"] == "start":
                addr, port = message["master_addr"], message["master_port"]
                if self._torchrun is None:
                    self._start(addr, port)
                else:
                    self._torchrun.start(addr, port, message["addr"])
            elif message["type"] == "stdin":
                self._input.feed(message["data"].encode("utf-8", "surrogateescape"))
            elif message["type"] == "probe":
                self._probing.ask(message, self._pids())
            elif message["type"] == "stop":
                self._stop(message["grace"])

    def _stop(self, grace: float) -> None:
        for pid in self._ranks:
            processes.signal_group(pid, signal.SIGTERM)
        if self._torchrun is not None:
            self._torchrun.terminate()
        for pid in self._groups():
            processes.signal_group(pid, signal.SIGCONT)  # a stopped process hears nothing
        kill_at = time.monotonic() + grace
        self._kill_at = kill_at if self._kill_at is None else min(self._kill_at, kill_at)
        if not self._groups():
            self._finished = True

    # What goes to the controller

    def _fail(self, message: str, grace: float = 0.0) -> None:
        self._report("error", message=message)
        self._stop(grace)

    def _report(self, type: str, **fields: Any) -> None:  # noqa: A002 - the field's name
        self._unsent += encode({"type": type, "node": self.job.node, **fields})
        self._send()

    def _send(self) -> None:
        """Write what the reader takes now; watch for its readiness for the rest."""
        try:
            while self._unsent:
                sent = os.write(self._reports, memoryview(self._unsent)[:CHUNK])
                del self._unsent[:sent]
        except BlockingIOError:
            pass
        except OSError:  # the controller has gone: the end of stdin says the same
            self._unsent.clear()
        watched = self._reports in self._selector.get_map()
        if self._unsent and not watched:
            self._watch(self._reports, self._send, selectors.EVENT_WRITE)
        elif not self._unsent and watched:
            self._selector.unregister(self._reports)
        self._pipes.pause(len(self._unsent) > BUFFER_LIMIT)

    def _flush(self) -> None:
        """Wait for the reader of stdout, but not for one that has gone without closing it."""
        give_up = time.monotonic() + FLUSH_TIMEOUT
        while self._unsent and time.monotonic() < give_up:
            left = len(self._unsent)
            self._selector.select(timeout=0.1)
            self._send()
            if len(self._unsent) < left or not self._controller_gone:
                give_up = time.monotonic() + FLUSH_TIMEOUT
