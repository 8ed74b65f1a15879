"""One start of all ranks: from the roll-call of the agents to the last rank's end."""

import contextlib
import queue
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from signal import Signals
from typing import Literal

from lab.errors import EXIT_STALLED, EXIT_TIMEOUT, LabError
from lab.node.processes import peak_memory_kib
from lab.node.protocol import Message, NodeJob
from lab.runs.deadline import Deadline
from lab.runs.failures import Failures
from lab.runs.hints import hint_for_victim
from lab.runs.inquiry import AttemptInquiry
from lab.runs.listener import Listener
from lab.runs.nodes import QUEUE_LIMIT, AgentLink, Heartbeat, Inbox, connect
from lab.runs.stdin import Stdin
from lab.runs.verdict import Failure, Kind, Verdict
from lab.topology import Node, Topology
from lab.transport.base import Transport

HELLO_TIMEOUT = 60.0
"""Seconds for all agents to answer, once their nodes are up."""
GRACE = 30.0
"""Seconds between SIGTERM and SIGKILL after Ctrl-C or the timeout, unless the user says."""
FAILURE_GRACE = 1.0
"""The same for the others when a rank has failed."""
GONE_PATIENCE = 1.0
"""Seconds after the end of an agent's streams in which its node may turn out to have gone too."""
AGENT_PATIENCE = 10.0
"""Seconds for an agent to end after the last of its ranks had to."""

Reason = Literal["failure", "interrupt", "timeout", "stall", "end"]
"""Why the ranks are ended."""


@dataclass
class Interrupts:
    """Ctrl-C and its kin, as they have come so far."""

    count: int = 0
    signal: Signals = Signals.SIGINT


class Attempt:
    """Starts the ranks once and follows them to their end.

    The first real failure wins: the others are ended at once, and the verdict is about it, not
    about those that lost their connection to it.
    """

    hello_timeout = HELLO_TIMEOUT

    def __init__(
        self,
        topology: Topology,
        transport: Transport,
        listener: Listener,
        interrupts: Interrupts,
        grace: float | None,
        deadline: Deadline,
        stdin: Stdin | None,
        inquiry: AttemptInquiry,
    ) -> None:
        """`grace` and `deadline` are those of the run; `stdin` is for rank 0."""
        self._topology = topology
        self._transport = transport
        self._listener = listener
        self._interrupts = interrupts
        self._grace = GRACE if grace is None else grace
        self._failure_grace = FAILURE_GRACE if grace is None else grace
        self._deadline = deadline
        self._stdin = stdin
        self._inquiry = inquiry
        self._inbox: Inbox = queue.Queue(QUEUE_LIMIT)
        self._links: dict[str, AgentLink] = {}
        self._heartbeat: Heartbeat | None = None
        self.port: int | None = None
        """Of the rendezvous, once the ranks have been told to start."""
        self._failures = Failures()
        self._alive: set[int] = set()
        self._exited: set[int] = set()
        self._ended: set[int] = set()  # those that we ended
        self._ended_well: set[int] = set()  # with 0, before we did
        self._stopped = False
        self._timed_out = False
        self._stalled = False
        self._obeyed_interrupts = 0
        self._give_up_at: float | None = None
        self._look_at = 0.0  # when to ask next whether the nodes are alive
        self._silent: tuple[str, ...] = ()  # nodes that were told to end and did not
        self._started_at = time.monotonic()

    def run(self, jobs: list[NodeJob]) -> Verdict:
        """Run the nodes' jobs, by node rank, to their end.

        Raises:
            LabError: the ranks could not be started.
        """
        try:
            self._begin(jobs)
            self._follow()
            return self._judge()
        finally:
            self._part()

    def _part(self) -> None:
        """Let the agents go: the end of their stdin ends whatever may be left of them."""
        if self._heartbeat is not None:
            self._heartbeat.end()
        for link in self._links.values():
            link.channel.close_stdin()
        for link in self._links.values():
            with contextlib.suppress(TimeoutError, OSError, LabError):  # the end says why
                link.channel.wait(timeout=0 if link.node.name in self._silent else AGENT_PATIENCE)
            link.channel.close()

    def _begin(self, jobs: list[NodeJob]) -> None:
        """Start every agent, wait for the roll-call, start the ranks."""
        with ThreadPoolExecutor(min(32, len(jobs))) as pool:
            list(pool.map(self._connect, jobs))
        self._heartbeat = Heartbeat(self._links.values(), self._transport.silence)
        give_up = time.monotonic() + self.hello_timeout
        while missing := [link for link in self._links.values() if not link.greeted]:
            if time.monotonic() > give_up:
                names = ", ".join(link.node.name for link in missing)
                raise LabError(f"no answer from the agent on {names} in {self.hello_timeout:.0f} s")
            self._receive()
            lost = self._failures.lost
            if lost is not None:
                raise LabError(f"{lost.node} cannot take part: {lost.message}")
            if self._interrupts.count:
                return  # the ranks never start; `_follow` ends the agents
        port = self.port = self._links[self._topology.master_node.name].port
        assert port is not None
        addr = self._transport.address(self._topology.master_node)
        self._started_at = time.monotonic()
        self._deadline.start()
        self._listener.event(
            {"type": "run", "id": jobs[0].run_id, "master": f"{addr}:{port}"}
            | {"restart": jobs[0].restart_count}
        )
        for link in self._links.values():
            own = self._transport.address(link.node)
            link.send(type="start", master_addr=addr, master_port=port, addr=own)
        self._alive = {rank.rank for rank in self._topology.ranks()}
        self._inquiry.begin(self._links.values(), f"{addr}:{port}")

    def _connect(self, job: NodeJob) -> None:
        node = self._topology.nodes[job.node_rank]
        self._links[node.name] = connect(self._transport, node, job, self._inbox)

    # Following

    def _follow(self) -> None:
        """Take what the agents say until the last has ended."""
        while any(not link.done for link in self._links.values()):
            self._receive()
            now = time.monotonic()
            stop_at = self._stop_at
            if self._interrupts.count > self._obeyed_interrupts:
                self._obeyed_interrupts = self._interrupts.count
                self._stop("interrupt", self._grace if self._interrupts.count == 1 else 0.0)
            elif self._is_too_late():
                if self._inquiry.before_end("asked"):
                    self._timed_out = True
                    self._stop("timeout", self._grace)
            elif self._inquiry.wants_end and not self._stopped and stop_at is None:
                self._stalled = True
                self._stop("stall", self._failure_grace)
            elif (
                stop_at is not None
                and not self._stopped
                and self._inquiry.before_end("failure", is_plain=self._failures.is_plain)
                and now >= stop_at
            ):
                self._stop("failure", self._failure_grace)
            self._inquiry.step()
            if self._give_up_at is not None and (now > self._give_up_at or self._only_dead(now)):
                # Closing their stdin has to do.
                self._silent = tuple(n for n, link in self._links.items() if not link.done)
                return

    @property
    def _stop_at(self) -> float | None:
        """When to end the ranks for a failure, if there was one (monotonic clock)."""
        return self._failures.stop_at

    def _only_dead(self, now: float) -> bool:
        """Whether the nodes that have not ended yet do not run at all (paused, say)."""
        if now < self._look_at:
            return False
        self._look_at = now + 1
        left = [link for link in self._links.values() if not link.done]
        return not any(self._transport.alive(link.node) for link in left)

    def _is_too_late(self) -> bool:
        if self._stopped or self._stop_at is not None:
            return False
        return self._is_running() and self._deadline.has_passed

    def _is_running(self) -> bool:
        return bool(self._alive)

    def _stop(self, because: Reason, grace: float) -> None:
        if not self._stopped:
            self._ended |= self._alive
        self._stopped = True
        self._failures.close()
        self._inquiry.close()
        self._give_up_at = time.monotonic() + grace + AGENT_PATIENCE
        ranks = sorted(self._alive)
        self._listener.event({"type": "stop", "because": because, "grace": grace, "ranks": ranks})
        for link in self._links.values():
            link.send(type="stop", grace=grace)

    def _receive(self) -> None:
        try:
            link, message = self._inbox.get(timeout=0.05)
        except queue.Empty:
            return
        if message is None:
            self._on_end(link)
        elif message["type"] == "log":
            self._inquiry.on_output(message["rank"], message["data"])
            self._listener.log(message["node"], message["rank"], message["stream"], message["data"])
        elif message["type"] == "stdin":
            self._on_stdin(link, message)
        elif message["type"] == "audit":
            self._listener.event(message)
        elif message["type"] in ("state", "probed"):
            self._inquiry.on_answer(link, message)
        else:
            self._inquiry.on_event(message)
            self._listener.event(message)
            handler: Callable[[AgentLink, Message], None]
            handler = getattr(self, f"_on_{message['type']}")
            handler(link, message)

    def _on_stdin(self, link: AgentLink, message: Message) -> None:
        """Rank 0 waits for input: send what there is, or come back here once there is some."""
        assert self._stdin is not None
        data = self._stdin.read(message["size"], lambda: self._inbox.put((link, message)))
        self._inquiry.hold(data is None)
        if data is not None:
            link.send(type="stdin", data=data.decode("utf-8", "surrogateescape"))

    def _on_hello(self, link: AgentLink, message: Message) -> None:
        link.greeted = True
        link.port = message["port"]

    def _on_started(self, link: AgentLink, message: Message) -> None:
        pass  # of interest to listeners only

    def _on_exception(self, link: AgentLink, message: Message) -> None:
        self._failures.on_exception(link.node.name, message)

    def _on_context(self, link: AgentLink, message: Message) -> None:
        self._failures.on_context(link.node.name, message)

    def _on_exit(self, link: AgentLink, message: Message) -> None:
        self._alive.discard(message["rank"])
        self._exited.add(message["rank"])
        if message["code"] != 0:
            self._failures.on_exit(link.node.name, message)
        elif not self._stopped:
            self._ended_well.add(message["rank"])

    def _on_error(self, link: AgentLink, message: Message) -> None:
        self._lose(link, "agent-error", message["message"])

    def _on_bye(self, link: AgentLink, message: Message) -> None:
        link.max_rss_kib = message["max_rss"]
        link.said_bye = True

    def _on_end(self, link: AgentLink) -> None:
        if not link.said_bye:
            words = link.stderr.decode(errors="replace").strip().splitlines()
            reason = f": {words[-1]}" if words else ""
            state = link.end if self._stays(link.node) else "the node is gone"
            self._lose(link, "node-lost", f"{state}{reason}")
        elif not self._stopped and self._misses_ranks_of(link.node):
            self._lose(link, "node-lost", "somebody else ended its agent before its ranks began")
        link.done = True

    def _misses_ranks_of(self, node: Node) -> bool:
        """Whether an agent that went in order has not told of the end of all its ranks."""
        return not self._ranks_of(node) <= self._exited

    def _stays(self, node: Node) -> bool:
        """Whether a node is alive, and not only not yet known to be gone."""
        give_up = time.monotonic() + GONE_PATIENCE
        while self._transport.alive(node):
            if time.monotonic() > give_up:
                return True
            time.sleep(0.05)
        return False

    def _lose(self, link: AgentLink, kind: Kind, reason: str) -> None:
        """A node on which no rank can run any more."""
        rank = min(self._ranks_of(link.node))
        self._failures.on_lost(Failure(rank, link.node.name, kind, 1, message=reason))

    def _ranks_of(self, node: Node) -> set[int]:
        return {rank.rank for rank in self._topology.ranks() if rank.node == node}

    # Judging

    @property
    def _world_size(self) -> int:
        return self._topology.world_size

    def _judge(self) -> Verdict:
        first = self._failures.first
        victims, others = self._failures.victims, self._failures.others
        kind: Kind
        if first is not None:
            kind, code, summary = first.kind, first.exit_code, str(first)
        elif self._interrupts.count:
            kind, code = "interrupted", 128 + self._interrupts.signal
            is_unread = self._interrupts.signal == Signals.SIGPIPE
            summary = "nobody reads its output any more" if is_unread else "interrupted"
        elif self._timed_out:
            kind, code = "timeout", EXIT_TIMEOUT
            summary = f"not done after {self._deadline.timeout:g} s (--timeout)"
        elif self._stalled:
            kind, code = "stalled", EXIT_STALLED
            finding = self._inquiry.finding
            assert finding is not None
            summary = f"no rank made progress: {finding.summary}"
        else:
            ranks = self._world_size
            kind, code = "ok", 0
            seconds = time.monotonic() - self._started_at
            summary = f"{ranks} rank{'s' * (ranks > 1)} ended well in {seconds:.1f} s"
        rss = {link.node.name: link.max_rss_kib for link in self._links.values()}
        failed = {first.rank, *victims, *others} if first is not None else set()
        why = self._inquiry.review() if kind == "ok" else self._inquiry.conclude(first)
        left = why.ranks if why is not None and why.kind == "ended-early" else ()
        return Verdict(
            kind,
            code,
            summary,
            first,
            victims=victims,
            others=others,
            other_reasons=self._failures.other_reasons,
            ended=tuple(sorted(self._ended - failed)) if kind != "interrupted" else (),
            hint=None
            if first is None
            else hint_for_victim(first, self._ended_well, self._ended, left),
            silent=self._silent,
            seconds=round(time.monotonic() - self._started_at, 3),
            max_rss_kib={**rss, "controller": peak_memory_kib()},
        ).with_why(why)
