"""Finds out why an attempt makes no progress or has failed, while it goes on.

It asks the agents for pulses, and for all that there is to know when nothing has moved for too
long, when `lab why` wants to know, and when a rank has failed, before the others are ended. Nobody
waits for it but the end of a failed attempt, for a moment.
"""

import time
from collections.abc import Collection
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

from lab.diagnose.finding import Finding
from lab.errors import LabError
from lab.node.protocol import Message
from lab.node.stall import StallWatch
from lab.runs.evidence import Record, judged
from lab.runs.last_lines import LastLines
from lab.runs.listener import Listener
from lab.runs.nodes import AgentLink
from lab.runs.questions import Desk
from lab.runs.stall import Stall
from lab.runs.verdict import Failure
from lab.topology import Topology
from lab.transport.base import Transport

PULSE_PATIENCE = 3.0
"""Seconds for a node to tell its ranks' pulses: what is silent for longer counts as silent."""
STATE_PATIENCE = 4.0
"""The same for all that there is to tell."""
STACKS_PATIENCE = 12.0
"""The same of a node that has answered the time before: stacks that have to be read from outside
may take it some seconds (`lab.node.probing`)."""
PLAIN_PATIENCE = 0.3
"""The same when the ranks are about to be ended for a failure that tells by itself why it came."""
DESK_EVERY = 0.2
"""Seconds between two looks for a question of `lab why`."""

Because = Literal["asked", "stall", "failure"]


@dataclass
class _Round:
    """One question to all agents, until it is answered or given up."""

    number: int
    time: float
    """When it was asked (epoch)."""
    asked_at: float
    give_up_at: float
    awaited: set[str]
    """Nodes that have not answered."""
    known: frozenset[str]
    """Nodes that answered the time before."""
    because: Because | None = None
    """None: it is for pulses alone."""
    stalled_s: float | None = None

    def is_over(self, now: float) -> bool:
        """Whether nobody is waited for any more."""
        if now >= self.asked_at + STATE_PATIENCE and not self.awaited & self.known:
            return True
        return not self.awaited or now >= self.give_up_at


class Inquiry:
    """Of one attempt. Its methods are called by the attempt's own loop, and do not block."""

    def __init__(
        self,
        topology: Topology,
        transport: Transport,
        listener: Listener,
        desk: Desk,
        stall: Stall,
        last_lines: LastLines,
    ) -> None:
        """`listener` gets an event of type `why` for each finding."""
        self._transport = transport
        self._listener = listener
        self._desk = desk
        self._stall = stall
        self._last_lines = last_lines
        self._record = Record(
            {rank.rank: rank.node.name for rank in topology.ranks()},
            [node.name for node in topology.nodes],
        )
        self._links: Collection[AgentLink] = ()
        self._watch: StallWatch | None = None
        self._round: _Round | None = None
        self._rounds = 0
        self._states: dict[int, Message] = {}
        self._late: set[str] = set()
        """Nodes that have answered an earlier question meanwhile: they are waited for again."""
        self._wanted: tuple[Because, float | None] | None = None
        self._questions: list[int] = []
        self._look_at = 0.0  # for questions
        self._ends: Because | None = None
        self._evidence: dict[str, Any] | None = None  # of the end
        self.finding: Finding | None = None
        """The last one about a stall, or about the end."""
        self.wants_end = False
        """Whether a stall is to end the attempt."""

    def begin(self, links: Collection[AgentLink], master: str) -> None:
        """The ranks have been told to start."""
        self._links = links
        self._record.master = master
        if self._stall.after:
            self._watch = StallWatch(self._stall.after, time.monotonic())

    # What the attempt hears

    def on_output(self, rank: int) -> None:
        """A rank wrote."""
        self._record.on_output(rank)
        self._progress()

    def on_event(self, message: Message) -> None:
        """Anything else that agents tell by themselves."""
        self._record.on_message(message)
        self._progress()

    def _progress(self) -> None:
        if self._watch is not None:
            self._watch.progress(time.monotonic())
        self._forget_stall()

    def _forget_stall(self) -> None:
        """The ranks go on, unless it is we who end them."""
        if self._links and self._ends is None:
            self.finding, self.wants_end = None, False

    def hold(self, waits: bool) -> None:
        """Rank 0 waits for input, or has got it: that is no stall of ours."""
        if self._watch is not None:
            self._watch.hold(waits, time.monotonic())

    def on_answer(self, link: AgentLink, message: Message) -> None:
        """A `state` or `probed` of an agent."""
        node, current = link.node.name, self._round
        if message["type"] == "state" and "id" not in message:
            self._record.on_message(message)
        elif current is None or message["id"] != current.number:  # too late
            if message["type"] == "probed":
                self._late.add(node)
        elif message["type"] == "state":
            self._states[message["rank"]] = message
        else:
            self._record.on_node(node, message)
            current.awaited.discard(node)

    # The clockwork

    def step(self) -> None:
        """Do what is due."""
        now = time.monotonic()
        if self._round is not None:
            if self._round.is_over(now):
                self._end_round(self._round)
            return
        if self._ends is not None or not self._links:
            return
        if now >= self._look_at:
            self._look_at = now + DESK_EVERY
            question = self._desk.question()
            if question is not None:
                self._questions.append(question)
                self._wanted = self._wanted or ("asked", None)
        if self._wanted is not None:
            if any(known.port is None for known in self._record.nodes.values()):
                # The first round tells where the nodes can be tried.
                self._ask("pulse", PULSE_PATIENCE)
                for known in self._record.nodes.values():
                    known.port = known.port or 0
                return
            because, stalled_s = self._wanted
            self._wanted = None
            self._ask("state", STACKS_PATIENCE, because, stalled_s)
        elif self._watch is not None and now >= self._watch.look_at:
            self._ask("pulse", PULSE_PATIENCE)

    def before_end(self, because: Because, *, is_plain: bool = False) -> bool:
        """See what the ranks do before they are ended; whether that is known by now.

        `is_plain`: why they are ended is known by now, and nobody needs to wait for long.
        """
        patience = PLAIN_PATIENCE if is_plain else STATE_PATIENCE
        if self._ends is None and self._links:
            self._ends = because
            self._ask("state", patience, because)
        elif self._round is not None:
            self._round.give_up_at = self._round.asked_at + patience
        return self._round is None

    def close(self) -> None:
        """The ranks are ended now: what they do from here on is our doing."""
        if self._ends is not None and self._links:
            if self._round is not None:
                self._end_round(self._round)
            if self._evidence is None:
                self._evidence = self._record.evidence(self._ends, None, None)
            self._record.hear_out(self._evidence)
        self._links = ()
        self._round = None

    def conclude(self, failure: Failure | None) -> Finding | None:
        """What is to be said in the verdict of a run that did not end well."""
        self.close()
        if failure is not None and self._evidence is None:  # all ranks had ended by themselves
            self._evidence = self._record.evidence("failure", None, None)
        if self._evidence is not None:
            if failure is not None:
                failure = replace(failure, last_lines=self._last_lines.of(failure.rank))
            self._evidence["failure"] = None if failure is None else asdict(failure)
            self.finding = self._judge(self._evidence)
        return self.finding

    # Rounds

    def _ask(
        self,
        what: str,
        patience: float,
        because: Because | None = None,
        stalled_s: float | None = None,
    ) -> None:
        self._rounds += 1
        now = time.monotonic()
        living = [link for link in self._links if not link.done]
        nodes = self._record.nodes
        # Who is silent is not waited for, but where it is to be judged.
        names = {link.node.name for link in living}
        out = self._round.awaited if self._round is not None else ()  # not silent, so far
        known = frozenset(
            name for name in names if nodes[name].answered or name in self._late or name in out
        )
        self._late.clear()
        patient = what == "state" and self._ends is None
        awaited = set(known) if known and not patient else names
        if patient:
            self._record.forget_reach()
        self._round = _Round(
            self._rounds, time.time(), now, now + patience, awaited, known, because, stalled_s
        )
        self._states = {}
        doors = {
            link.node.name: (self._transport.address(link.node), nodes[link.node.name].port)
            for link in living
            if nodes[link.node.name].port
        }
        for link in living:
            nodes[link.node.name].answered = False
            name = link.node.name
            others = {node: door for node, door in doors.items() if node != name}
            asked = {"peers": others, "master": self._rendezvous} if patient else {}
            link.send(type="probe", id=self._rounds, what=what, **asked)

    @property
    def _rendezvous(self) -> tuple[str, int] | None:
        """Where ranks meet, while some of them have not."""
        if self._record.has_met or self._record.master is None:
            return None
        address, _, port = self._record.master.rpartition(":")
        return address.strip("[]"), int(port)

    def _end_round(self, over: _Round) -> None:
        self._round = None
        for rank, message in self._states.items():
            if rank in self._record.ranks:
                self._record.ranks[rank].beat(message, over.time)
        if over.because is None:
            self._feed_watch(over)
            return
        for rank, known in self._record.ranks.items():
            known.state = self._states.get(rank)
        for link in self._links:
            node = self._record.nodes[link.node.name]
            node.alive = node.answered or link.said_bye or self._is_alive(link)
            if self._ends is not None and node.alive and link.node.name in over.known:
                node.answered = True  # the little time that there was is no proof
        if over.because == "stall" and self._ends is None and self._have_moved(over):
            if not self._questions:
                return  # what moved while it was asked is no stall
            over.because, over.stalled_s = "asked", None
        evidence = self._record.evidence(over.because, over.stalled_s, None)
        if self._ends is not None:
            self._evidence = evidence
            return
        finding = self._judge(evidence)
        if over.because == "stall":
            self.finding = finding
            self.wants_end = self._stall.stop and finding.kind != "slow"
            if finding.kind == "slow" and self._watch is not None:
                self._watch.progress(time.monotonic())  # and is asked for again if it lasts

    def _is_alive(self, link: AgentLink) -> bool:
        try:
            return self._transport.alive(link.node)
        except LabError:
            return False

    def _feed_watch(self, over: _Round) -> None:
        if self._watch is None:
            return
        if not any(known.answered for known in self._record.nodes.values()):
            self._watch.hear_nobody(self._silent, over.asked_at)
        else:
            self._have_moved(over)
        stalled_s = self._watch.stalled_for(time.monotonic())
        if stalled_s is not None:
            self._wanted = ("stall", stalled_s)

    @property
    def _silent(self) -> set[int]:
        """The ranks on nodes that have not answered."""
        nodes, ranks = self._record.nodes, self._record.ranks
        return {n for n, one in ranks.items() if one.ended is None and not nodes[one.node].answered}

    def _have_moved(self, over: _Round) -> bool:
        """Tell the watch what a round has shown; whether a rank has made progress."""
        assert self._watch is not None
        told = {
            rank: {**message, "probe": None} if message.get("source") == "py-spy" else message
            for rank, message in self._states.items()
        }
        if not self._watch.feed(told, self._silent, over.asked_at):
            return False
        self._record.forget_pulses()
        self._forget_stall()
        return True

    def _judge(self, evidence: dict[str, Any]) -> Finding:
        """Say and write down what the evidence shows."""
        finding, answer = judged(evidence)
        self._desk.publish(answer)
        for number in self._questions:
            self._desk.answer(number, answer)
        self._questions.clear()
        why = {name: evidence[name] for name in ("because", "stalled_s")}
        self._listener.event({"type": "why", **why, "finding": finding.to_json()})
        return finding
