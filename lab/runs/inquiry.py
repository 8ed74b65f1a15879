"""Finds out why an attempt makes no progress or has failed, while it goes on.

It asks the agents (`lab.runs.rounds`) for pulses, and for all that there is to know when nothing
has moved for too long, when `lab why` wants to know, and when a rank has failed, before the others
are ended. Nobody waits for it but the end of a failed attempt, for a moment.
"""

import time
from collections.abc import Collection
from dataclasses import asdict, replace
from typing import Any

from lab.diagnose.finding import Finding
from lab.node.protocol import Message
from lab.node.stall import StallWatch, is_progress
from lab.runs.evidence import Record, judged, reviewed
from lab.runs.last_lines import LastLines
from lab.runs.listener import Listener
from lab.runs.nodes import AgentLink
from lab.runs.questions import Desk
from lab.runs.rounds import STATE_PATIENCE, Because, Round, Rounds
from lab.runs.stall import Stall
from lab.runs.verdict import Failure
from lab.topology import Topology
from lab.transport.base import Transport

PULSE_PATIENCE = 3.0
"""Seconds for a node to tell its ranks' pulses: what is silent for longer counts as silent."""
STACKS_PATIENCE = 12.0
"""The same for all that there is to tell, of a node that has answered the time before: stacks that
have to be read from outside may take it some seconds (`lab.node.probing`)."""
PLAIN_PATIENCE = 0.3
"""The same when the ranks are about to be ended for a failure that tells by itself why it came."""
DESK_EVERY = 0.2
"""Seconds between two looks for a question of `lab why`."""


class AttemptInquiry:
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
        self._listener = listener
        self._desk = desk
        self._stall = stall
        self._last_lines = last_lines
        self._record = Record(
            {rank.rank: rank.node.name for rank in topology.ranks()},
            [node.name for node in topology.nodes],
        )
        self._rounds = Rounds(transport, self._record)
        self._watch: StallWatch | None = None
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
        self._rounds.links = links
        self._record.master = master
        if self._stall.after:
            self._watch = StallWatch(self._stall.after, time.monotonic())

    # What the attempt hears

    def on_output(self, rank: int, data: str) -> None:
        """A rank wrote."""
        self._record.on_output(rank)
        if is_progress(data):
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
        if self._rounds.links and self._ends is None:
            self.finding, self.wants_end = None, False

    def hold(self, waits: bool) -> None:
        """Rank 0 waits for input, or has got it: that is no stall of ours."""
        if self._watch is not None:
            self._watch.hold(waits, time.monotonic())

    def on_answer(self, link: AgentLink, message: Message) -> None:
        """A `state` or `probed` of an agent."""
        self._rounds.on_answer(link.node.name, message)

    # The clockwork

    def step(self) -> None:
        """Do what is due."""
        now = time.monotonic()
        if self._rounds.current is not None:
            if self._rounds.current.is_over(now):
                self._end_round()
            return
        if self._ends is not None or not self._rounds.links:
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
                self._rounds.ask(PULSE_PATIENCE)
                for known in self._record.nodes.values():
                    known.port = known.port or 0
                return
            because, stalled_s = self._wanted
            self._wanted = None
            self._rounds.ask(STACKS_PATIENCE, because, stalled_s)
        elif self._watch is not None and now >= self._watch.look_at:
            self._rounds.ask(PULSE_PATIENCE)

    def before_end(self, because: Because, *, is_plain: bool = False) -> bool:
        """See what the ranks do before they are ended; whether that is known by now.

        `is_plain`: why they are ended is known by now, and nobody needs to wait for long.
        """
        patience = PLAIN_PATIENCE if is_plain else STATE_PATIENCE
        if self._ends is None and self._rounds.links:
            self._ends = because
            self._rounds.ask(patience, because, is_last=True)
        elif self._rounds.current is not None:
            self._rounds.current.give_up_at = self._rounds.current.asked_at + patience
        return self._rounds.current is None

    def close(self) -> None:
        """The ranks are ended now: what they do from here on is our doing."""
        if self._ends is not None and self._rounds.links:
            if self._rounds.current is not None:
                self._end_round()
            if self._evidence is None:
                self._evidence = self._record.evidence(self._ends, None, None)
            self._record.hear_out(self._evidence)
        self._rounds.links = ()
        self._rounds.current = None

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

    def review(self) -> Finding | None:
        """What is to be said in the verdict of a run that has ended well: nothing, as a rule."""
        evidence = self._record.evidence("end", None, None)
        finding = reviewed(evidence)
        return None if finding is None else self._publish("end", None, *finding)

    def _end_round(self) -> None:
        over = self._rounds.end()
        if over.because is None:
            self._feed_watch(over)
            return
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

    def _feed_watch(self, over: Round) -> None:
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

    def _have_moved(self, over: Round) -> bool:
        """Tell the watch what a round has shown; whether a rank has made progress."""
        assert self._watch is not None
        told = {
            rank: {**message, "probe": None} if message.get("source") == "py-spy" else message
            for rank, message in over.states.items()
        }
        if not self._watch.feed(told, self._silent, over.asked_at):
            return False
        self._record.forget_pulses()
        self._forget_stall()
        return True

    def _judge(self, evidence: dict[str, Any]) -> Finding:
        """Say and write down what the evidence shows."""
        return self._publish(evidence["because"], evidence["stalled_s"], *judged(evidence))

    def _publish(
        self, because: Because, stalled_s: float | None, finding: Finding, answer: dict[str, Any]
    ) -> Finding:
        self._desk.publish(answer)
        for number in self._questions:
            self._desk.answer(number, answer)
        self._questions.clear()
        told = {"because": because, "stalled_s": stalled_s, "finding": finding.to_json()}
        self._listener.event({"type": "why", **told})
        return finding
