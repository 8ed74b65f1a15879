"""The run controller: one run from its directory to its verdict, the same on every transport."""

import contextlib
import queue
import signal
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from types import FrameType
from typing import Any, Protocol

from lab.errors import EXIT_INTERRUPTED, EXIT_TIMEOUT, LabError
from lab.node.processes import peak_memory_kib
from lab.node.protocol import Message, NodeJob
from lab.runs.directory import RunDirectory, RunFiles
from lab.runs.job import Job
from lab.runs.nodes import QUEUE_LIMIT, AgentLink, Inbox, connect, node_jobs
from lab.runs.verdict import Failure, Verdict, failure_from_exit
from lab.topology import Node, Topology
from lab.transport.base import Progress, Transport

HELLO_TIMEOUT = 60.0
"""Seconds for all agents to answer, once their nodes are up."""
VICTIM_PATIENCE = 1.0
"""Seconds to wait for the cause after the first failure that looks like a consequence."""
EXIT_PATIENCE = 0.7
"""Seconds for a rank that raised to write its traceback and end by itself."""
FAILURE_GRACE = 1.0
"""Seconds between SIGTERM and SIGKILL for the others when a rank has failed."""
GONE_PATIENCE = 1.0
"""Seconds after the end of an agent's streams in which its node may turn out to have gone too."""
AGENT_PATIENCE = 10.0
"""Seconds for an agent to end after the last of its ranks had to."""


class Listener(Protocol):
    """Somebody who wants to know what happens while it happens."""

    def log(self, node: str, rank: int, stream: str, text: str) -> None:
        """A rank wrote to stdout (`out`) or stderr (`err`); not always whole lines."""

    def event(self, message: Message) -> None:
        """Anything else that an agent reported, and `run` when the run begins."""


class RunController:
    """Runs a job on a topology's nodes. One instance, one run.

    The first real failure wins: the others are ended at once, and the verdict is about it, not
    about those that lost their connection to it.
    """

    def __init__(
        self,
        topology: Topology,
        job: Job,
        transport: Transport,
        listeners: Sequence[Listener] = (),
        grace: float = 30.0,
        timeout: float | None = None,
    ) -> None:
        """A run of a topology.

        Args:
            topology: its nodes.
            job: what their ranks run.
            transport: where the nodes are.
            listeners: who is told what happens.
            grace: seconds between SIGTERM and SIGKILL for the ranks after Ctrl-C or `timeout`.
            timeout: seconds that the ranks may take; None: as long as they like.
        """
        self.topology = topology
        self.job = job
        self.transport = transport
        self.grace = grace
        self.timeout = timeout
        self.directory = RunDirectory.create(topology, job)
        self._listeners = listeners
        self._files = RunFiles(self.directory)
        self._inbox: Inbox = queue.Queue(QUEUE_LIMIT)
        self._links: dict[str, AgentLink] = {}
        self._alive: set[int] = set()
        self._exceptions: dict[int, Failure] = {}
        self._failures: dict[int, Failure] = {}  # by rank, in the order of their coming
        self._stopped = False  # we have told the ranks to end: whatever follows is our doing
        self._stop_at: float | None = None  # when we do, unless something happens before
        self._give_up_at: float | None = None
        self._ended: set[int] = set()
        self._interrupts = 0
        self._signal = signal.SIGINT
        self._obeyed_interrupts = 0
        self._timed_out = False
        self._lost: Failure | None = None
        self._started_at = time.monotonic()

    def up(self, progress: Progress) -> None:
        """Bring the nodes up, if need be.

        Raises:
            LabError: they do not come up. The run directory says so too.
        """
        try:
            self.transport.up(progress, self.directory.id)
        except LabError as error:
            self._finish(Verdict("not-started", error.exit_code, str(error)))
            raise
        except BaseException:  # Ctrl-C, as SystemExit or KeyboardInterrupt
            self._finish(Verdict("interrupted", EXIT_INTERRUPTED, "interrupted"))
            raise

    def run(self) -> Verdict:
        """Run the ranks to their end.

        Raises:
            LabError: they could not be started. The run directory says so too.
        """
        restore = self._catch_signals()
        try:
            self._begin()
            self._follow()
            verdict = self._judge()
            self._finish(verdict)
            if verdict.kind == "interrupted":
                self.transport.release()
        except LabError as error:
            self._finish(Verdict("not-started", error.exit_code, str(error)))
            self.transport.release()
            raise
        finally:
            self._part()
            restore()
        return verdict

    def _finish(self, verdict: Verdict) -> None:
        self._part()
        self.directory.claim()
        self.directory.finish(verdict)
        self._files.close()

    def _part(self) -> None:
        """Let the agents go: the end of their stdin ends whatever may be left of them."""
        for link in self._links.values():
            link.channel.close_stdin()
        for link in self._links.values():
            with contextlib.suppress(TimeoutError, OSError):
                link.channel.wait(timeout=AGENT_PATIENCE)
            link.channel.close()
        self._links.clear()

    # Beginning

    def _begin(self) -> None:
        """Start every agent, wait for the roll-call, start the ranks."""
        jobs = node_jobs(
            self.topology, self.job, self.transport, self.directory.id, self.directory.path
        )
        with ThreadPoolExecutor(min(32, len(jobs))) as pool:
            list(pool.map(self._connect, jobs))
        give_up = time.monotonic() + HELLO_TIMEOUT
        while missing := [link for link in self._links.values() if not link.greeted]:
            if time.monotonic() > give_up:
                names = ", ".join(link.node.name for link in missing)
                raise LabError(f"no answer from the agent on {names} in {HELLO_TIMEOUT:.0f} s")
            self._receive()
            self._raise_lost()
            if self._interrupts:
                return  # the ranks never start; `_follow` ends the agents
        port = self.topology.master.port or self._links[self.topology.nodes[0].name].port
        assert port is not None
        addr = self.transport.address(self.topology.nodes[0])
        self._started_at = time.monotonic()
        self._tell({"type": "run", "id": self.directory.id, "master": f"{addr}:{port}"})
        for link in self._links.values():
            link.send(type="start", master_addr=addr, master_port=port)
        self._alive = {rank.rank for rank in self.topology.ranks()}

    def _connect(self, job: NodeJob) -> None:
        node = self.topology.nodes[job.node_rank]
        self._links[node.name] = connect(self.transport, node, job, self._inbox)

    # Following

    def _follow(self) -> None:
        """Take what the agents say until the last has ended."""
        while any(not link.done for link in self._links.values()):
            self._receive()
            now = time.monotonic()
            if self._interrupts > self._obeyed_interrupts:
                self._obeyed_interrupts = self._interrupts
                self._stop(self.grace if self._interrupts == 1 else 0.0)
            elif self._is_too_late(now):
                self._timed_out = True
                self._stop(self.grace)
            elif not self._stopped and self._stop_at is not None and now >= self._stop_at:
                self._stop(FAILURE_GRACE)
            if self._give_up_at is not None and now > self._give_up_at:
                return  # an agent that does not answer: closing its stdin has to do

    def _is_too_late(self, now: float) -> bool:
        if self.timeout is None or self._stopped or self._stop_at is not None:
            return False
        return bool(self._alive) and now - self._started_at > self.timeout

    def _receive(self) -> None:
        try:
            link, message = self._inbox.get(timeout=0.05)
        except queue.Empty:
            return
        if message is None:
            self._on_end(link)
            return
        kind = message["type"]
        if kind == "log":
            self._files.log(message["node"], message["rank"], message["stream"], message["data"])
            for listener in self._listeners:
                listener.log(message["node"], message["rank"], message["stream"], message["data"])
            return
        self._tell(message)
        handler: Callable[[AgentLink, Message], None] = getattr(self, f"_on_{kind}")
        handler(link, message)

    def _on_hello(self, link: AgentLink, message: Message) -> None:
        link.greeted = True
        link.port = message["port"]

    def _on_started(self, link: AgentLink, message: Message) -> None:
        pass  # of interest to the run directory and the listeners only

    def _on_exception(self, link: AgentLink, message: Message) -> None:
        rank = message["rank"]
        self._exceptions[rank] = Failure(
            rank=rank,
            node=link.node.name,
            kind="exception",
            exit_code=1,
            exception=message["kind"],
            message=message["message"],
            file=message["file"],
            line=message["line"],
            traceback=message["traceback"],
        )
        self._on_failure(self._exceptions[rank], patience=EXIT_PATIENCE)

    def _on_exit(self, link: AgentLink, message: Message) -> None:
        rank, code = message["rank"], message["code"]
        self._alive.discard(rank)
        if code == 0:
            return
        known = self._failures.get(rank)
        if known is not None:
            if message["signal"] is None:  # else it was we who ended it while it was dying
                self._failures[rank] = replace(known, exit_code=code)
            self._on_failure(self._failures[rank], patience=0.0)
        else:
            failure = failure_from_exit(rank, link.node.name, code, message["signal"])
            self._on_failure(failure, patience=0.0)

    def _on_failure(self, failure: Failure, patience: float) -> None:
        """Note a failure and see to it that the others are ended soon."""
        if self._stopped and failure.rank not in self._failures:
            return  # our own doing
        self._failures.setdefault(failure.rank, failure)
        if failure.looks_like_victim:
            patience = VICTIM_PATIENCE
        stop_at = time.monotonic() + patience
        self._stop_at = stop_at if self._stop_at is None else min(self._stop_at, stop_at)

    def _on_error(self, link: AgentLink, message: Message) -> None:
        self._lose(link, "agent-error", message["message"])

    def _on_bye(self, link: AgentLink, message: Message) -> None:
        link.max_rss_kib = message["max_rss"]
        link.said_bye = True

    def _on_end(self, link: AgentLink) -> None:
        if not link.said_bye:
            words = link.stderr.decode(errors="replace").strip().splitlines()
            reason = f": {words[-1]}" if words else ""
            state = "its agent ended" if self._stays(link.node) else "the node is gone"
            self._lose(link, "node-lost", f"{state}{reason}")
        link.done = True

    def _stays(self, node: Node) -> bool:
        """Whether a node is alive, and not only not yet known to be gone."""
        give_up = time.monotonic() + GONE_PATIENCE
        while self.transport.alive(node):
            if time.monotonic() > give_up:
                return True
            time.sleep(0.05)
        return False

    def _lose(self, link: AgentLink, kind: Any, reason: str) -> None:
        """A node on which no rank can run any more."""
        first_rank = min(r.rank for r in self.topology.ranks() if r.node == link.node)
        if self._lost is None and not self._stopped:
            self._lost = Failure(first_rank, link.node.name, kind, 1, message=reason)
        self._stop_at = time.monotonic()

    def _raise_lost(self) -> None:
        if self._lost is not None:
            raise LabError(f"{self._lost.node} cannot take part: {self._lost.message}")

    def _stop(self, grace: float) -> None:
        if not self._stopped:
            self._ended = set(self._alive)
        self._stopped = True
        self._give_up_at = time.monotonic() + grace + AGENT_PATIENCE
        for link in self._links.values():
            link.send(type="stop", grace=grace)

    def _tell(self, message: Message) -> None:
        self._files.event(message)
        for listener in self._listeners:
            listener.event(message)

    # Judging

    def _judge(self) -> Verdict:
        seconds = round(time.monotonic() - self._started_at, 3)
        rss = {link.node.name: link.max_rss_kib for link in self._links.values()}
        rss["controller"] = peak_memory_kib()
        failures = list(self._failures.values())
        real = [failure for failure in failures if not failure.looks_like_victim]
        first = next(iter(real), None) or self._lost or next(iter(failures), None)
        if first is None and self._interrupts:
            code = 128 + self._signal
            return Verdict("interrupted", code, "interrupted", seconds=seconds, max_rss_kib=rss)
        if first is None and self._timed_out:
            late = f"not done after {self.timeout:g} s (--timeout)"
            return Verdict(
                "timeout",
                EXIT_TIMEOUT,
                late,
                ended=tuple(sorted(self._ended)),
                seconds=seconds,
                max_rss_kib=rss,
            )
        if first is None:
            ranks = self.topology.world_size
            summary = f"{ranks} rank{'s' * (ranks > 1)} ended well in {seconds:.1f} s"
            return Verdict("ok", 0, summary, seconds=seconds, max_rss_kib=rss)
        victims = tuple(sorted(f.rank for f in failures if f.rank != first.rank))
        return Verdict(
            first.kind,
            first.exit_code,
            str(first),
            first,
            victims=victims,
            ended=tuple(sorted(self._ended - {first.rank, *victims})),
            seconds=seconds,
            max_rss_kib=rss,
        )

    # Signals

    def _catch_signals(self) -> Callable[[], None]:
        """Have the first Ctrl-C (or TERM, or HUP) end the run in order, the next one at once."""
        if threading.current_thread() is not threading.main_thread():
            return lambda: None

        def interrupt(number: int, _frame: FrameType | None) -> None:
            self._interrupts += 1
            self._signal = signal.Signals(number)

        numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
        before = {number: signal.signal(number, interrupt) for number in numbers}

        def restore() -> None:
            for number, handler in before.items():
                signal.signal(number, handler)

        return restore
