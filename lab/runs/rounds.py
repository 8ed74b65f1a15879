"""Questions to the agents of one attempt, one after another, and what they answer.

Nobody waits: a round is over when all have answered that can, or when it has taken too long.
"""

import time
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Literal

from lab.errors import LabError
from lab.node.protocol import Message
from lab.runs.evidence import Record
from lab.runs.nodes import AgentLink
from lab.transport.base import Transport

STATE_PATIENCE = 4.0
"""Seconds for a node to tell all that there is to tell: who is silent for longer counts as silent,
unless it has answered the time before."""

Because = Literal["asked", "stall", "failure", "end"]


@dataclass
class Round:
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
    is_last: bool = False
    """Whether the ranks are ended after it."""
    states: dict[int, Message] = field(default_factory=dict)
    """What the ranks have answered."""

    def is_over(self, now: float) -> bool:
        """Whether nobody is waited for any more."""
        if now >= self.asked_at + STATE_PATIENCE and not self.awaited & self.known:
            return True
        return not self.awaited or now >= self.give_up_at


class Rounds:
    """Of one attempt; what is answered goes into its record."""

    def __init__(self, transport: Transport, record: Record) -> None:
        self._transport = transport
        self._record = record
        self._count = 0
        self._late: set[str] = set()
        """Nodes that have answered an earlier question meanwhile: they are waited for again."""
        self.links: Collection[AgentLink] = ()
        """Whom to ask: nobody before the ranks are told to start, and when they are ended."""
        self.current: Round | None = None

    def ask(
        self,
        patience: float,
        because: Because | None = None,
        stalled_s: float | None = None,
        *,
        is_last: bool = False,
    ) -> None:
        """Begin a round, for pulses alone unless there is something `because` of which to ask."""
        self._count += 1
        now = time.monotonic()
        living = [link for link in self.links if not link.done]
        nodes = self._record.nodes
        # Who is silent is not waited for, but where it is to be judged.
        names = {link.node.name for link in living}
        out = self.current.awaited if self.current is not None else ()  # not silent, so far
        known = frozenset(
            name for name in names if nodes[name].answered or name in self._late or name in out
        )
        self._late.clear()
        patient = because is not None and not is_last
        awaited = set(known) if known and not patient else names
        if patient:
            self._record.forget_reach()
        self.current = Round(
            self._count,
            time.time(),
            now,
            now + patience,
            awaited,
            known,
            because,
            stalled_s,
            is_last,
        )
        doors = {
            link.node.name: (self._transport.address(link.node), nodes[link.node.name].port)
            for link in living
            if nodes[link.node.name].port
        }
        # When a rank has failed, the others are not kept waiting for more than is needed.
        what = {None: "pulse", "asked": "family", "stall": "family"}.get(because, "state")
        for link in living:
            name = link.node.name
            nodes[name].answered = False
            others = {node: door for node, door in doors.items() if node != name}
            asked = {"peers": others, "master": self._rendezvous} if patient else {}
            link.send(type="probe", id=self._count, what=what, **asked)

    @property
    def _rendezvous(self) -> tuple[str, int] | None:
        """Where ranks meet, while some of them have not."""
        if self._record.has_met or self._record.master is None:
            return None
        address, _, port = self._record.master.rpartition(":")
        return address.strip("[]"), int(port)

    def on_answer(self, node: str, message: Message) -> None:
        """A `state` or `probed` of an agent."""
        current = self.current
        if message["type"] == "state" and "id" not in message:
            self._record.on_message(message)
        elif current is None or message["id"] != current.number:  # too late
            if message["type"] == "probed":
                self._late.add(node)
        elif message["type"] == "state":
            current.states[message["rank"]] = message
        else:
            self._record.on_node(node, message)
            current.awaited.discard(node)

    def end(self) -> Round:
        """End the current round, and write down what it has shown."""
        over, self.current = self.current, None
        assert over is not None
        for rank, message in over.states.items():
            if rank in self._record.ranks:
                self._record.ranks[rank].beat(message, over.time)
        if over.because is None:
            return over
        for rank, known in self._record.ranks.items():
            known.state = over.states.get(rank)
        for link in self.links:
            node = self._record.nodes[link.node.name]
            node.alive = node.answered or link.said_bye or self._is_alive(link)
            if over.is_last and node.alive and link.node.name in over.known:
                node.answered = True  # the little time that there was is no proof
        return over

    def _is_alive(self, link: AgentLink) -> bool:
        try:
            return self._transport.alive(link.node)
        except LabError:
            return False
