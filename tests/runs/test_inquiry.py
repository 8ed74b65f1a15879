"""Whom an inquiry asks and waits for: agents are played, and answer when they are told to."""

import json
from types import SimpleNamespace
from typing import Any, cast

import pytest

from lab.node.protocol import Message
from lab.runs.inquiry import AttemptInquiry
from lab.runs.last_lines import LastLines
from lab.runs.listener import Listener
from lab.runs.nodes import AgentLink
from lab.runs.questions import Desk
from lab.runs.stall import Stall
from lab.topology import load_topology
from lab.transport.base import Transport

NODES = 2


def thread(function: str) -> Message:
    """A main thread that is in one function."""
    frame = {"file": "train.py", "line": 1, "function": function, "user": True}
    return {"name": "MainThread", "main": True, "frames": [frame]}


class Played:
    """Agents, transport, listener and desk in one: nothing but what is asked is kept."""

    def __init__(self, clock: pytest.MonkeyPatch) -> None:
        self.now = 100.0
        played_time = SimpleNamespace(monotonic=lambda: self.now, time=lambda: self.now)
        for module in ("inquiry", "rounds"):
            clock.setattr(f"lab.runs.{module}.time", played_time)
        self.asked: list[Message] = []
        self.wanted: int | None = None
        self.found: list[str] = []
        self.told: list[Any] = []
        topology = load_topology("pair")
        played = cast(Any, self)
        self.inquiry = AttemptInquiry(
            topology,
            cast(Transport, played),
            cast(Listener, played),
            cast(Desk, played),
            Stall(after=60.0),
            LastLines(),
        )
        self.links = [AgentLink(node, played) for node in topology.nodes]
        self.inquiry.begin(self.links, "node0:1")

    def send(self, line: bytes) -> None:
        self.asked.append(json.loads(line))

    def question(self) -> int | None:
        wanted, self.wanted = self.wanted, None
        return wanted

    def publish(self, answer: Any) -> None:
        self.told.append(answer)

    def answer(self, number: int, answer: Any) -> None: ...

    def event(self, message: Message) -> None:
        self.found.append(message["finding"]["kind"])

    def address(self, node: Any) -> str:
        return "127.0.0.1"

    def alive(self, node: Any) -> bool:
        return True

    def tell(
        self,
        number: int,
        *nodes: int,
        clock: float = 0.0,
        stack: str | None = None,
        begun: int | None = None,
    ) -> None:
        """These nodes answer one question; what their clocks say is wrong by seconds."""
        for node in nodes:
            process = {"cpu_s": 1.0, "busy": False, "state": "S"}
            told = {"type": "state", "id": number, "rank": node, "process": process}
            threads = [] if stack is None else [thread(stack)]
            probe = {"time": self.now + clock, "threads": threads}
            if begun is not None:
                probe |= {"seqs": {"0": begun}, "pending": 1, "at": "train.py:6"}
            told["probe"] = probe
            self.inquiry.on_answer(self.links[node], told)
            over = {"type": "probed", "id": number, "port": 1, "ptrace": None}
            self.inquiry.on_answer(self.links[node], {**over, "peers": {}, "master": None})

    @property
    def rounds(self) -> int:
        """How many questions have been put."""
        return len(self.asked) // NODES

    def go_on(self, seconds: float) -> int:
        """Later; the number of the question that is out then."""
        self.now += seconds
        self.inquiry.step()
        self.inquiry.step()
        return self.rounds


def test_a_node_that_was_silent_once_is_waited_for_again(monkeypatch: pytest.MonkeyPatch) -> None:
    played = Played(monkeypatch)
    assert played.go_on(10) == 1
    played.tell(1, 0)
    assert played.go_on(4) == 2  # the other is given up, and not waited for
    played.tell(2, 0)
    assert played.go_on(10) == 3
    played.tell(1, 1)
    played.tell(3, 0)
    assert played.go_on(10) == 4  # it is back
    played.tell(4, 0)
    assert played.go_on(1) == 4
    played.tell(4, 1)
    assert played.go_on(10) == 5


def test_a_silent_node_is_waited_for_where_it_is_to_be_judged(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    played = Played(monkeypatch)
    assert played.go_on(10) == 1
    played.tell(1, 0)
    played.wanted = 7
    assert played.go_on(4) == 2
    played.tell(2, 0)
    assert played.go_on(1) == 3  # now for all that there is to know
    played.tell(3, 0)
    assert (played.go_on(1), played.found) == (3, [])
    played.tell(3, 1)
    played.go_on(1)
    assert played.found not in ([], ["dead"])


def test_all_pulses_have_the_time_of_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    played = Played(monkeypatch)
    assert played.go_on(10) == 1
    played.tell(1, 0, 1, clock=-500)
    played.wanted = 7
    assert played.go_on(1) == 2
    played.tell(2, 0, 1, clock=500)
    played.go_on(1)
    pulses = [one["pulses"] for one in played.told[0]["evidence"]["ranks"].values()]
    assert [[pulse["time"] for pulse in one] for one in pulses] == [[110.0, 111.0]] * 2


def test_a_failure_that_tells_why_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    played = Played(monkeypatch)
    assert not played.inquiry.before_end("failure", is_plain=True)
    played.tell(1, 0)
    played.go_on(0.5)
    assert played.inquiry.before_end("failure", is_plain=True)


def test_what_tells_why_a_rank_has_failed_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    played = Played(monkeypatch)
    assert not played.inquiry.before_end("failure")
    played.tell(1, 0)
    played.go_on(2)
    assert not played.inquiry.before_end("failure")
    played.tell(1, 1)
    played.go_on(0)
    assert played.inquiry.before_end("failure")


def test_the_cause_may_be_heard_of_while_a_victim_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    played = Played(monkeypatch)
    assert not played.inquiry.before_end("failure")
    played.go_on(0.5)
    assert not played.inquiry.before_end("failure", is_plain=True)
    played.go_on(0)
    assert played.inquiry.before_end("failure", is_plain=True)


def test_last_words_that_come_late_are_evidence_where_there_was_no_stack(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    played = Played(monkeypatch)
    played.inquiry.before_end("failure")
    played.tell(1, 0, stack="in its own code")
    played.go_on(5)
    for rank, name in ((0, "node0"), (1, "node1")):
        last = {"type": "state", "rank": rank, "node": name}
        told = {"threads": [thread("as it raised")], "time": played.now}
        played.inquiry.on_answer(played.links[rank], {**last, "probe": told})
    played.inquiry.close()
    played.inquiry.conclude(None)
    seen = played.told[-1]["evidence"]["ranks"]
    stacks = [seen[rank]["threads"][0]["frames"][0]["function"] for rank in ("0", "1")]
    assert stacks == ["in its own code", "as it raised"]


def test_who_has_not_answered_yet_is_asked_for_the_last_time_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    played = Played(monkeypatch)
    assert played.go_on(10) == 1
    played.tell(1, 0)  # and the other has had no time yet
    assert not played.inquiry.before_end("failure")
    played.tell(2, 0)
    played.go_on(0)
    assert not played.inquiry.before_end("failure")
    played.tell(2, 1)
    played.go_on(0)
    assert played.inquiry.before_end("failure")


@pytest.mark.parametrize(("then", "found"), [(5, ["unknown"]), (6, [])], ids=["stays", "moves"])
def test_what_moves_while_it_is_asked_why_it_stalls_does_not(
    monkeypatch: pytest.MonkeyPatch, then: int, found: list[str]
) -> None:
    played = Played(monkeypatch)
    number = played.go_on(10)
    while played.asked[-1]["what"] == "pulse":
        played.tell(number, 0, 1, begun=5)
        number = played.go_on(2)
    played.tell(number, 0, 1, begun=then)
    played.go_on(0)
    assert played.found == found
