"""Who is asked what, with nodes that are played: rounds, silence, ends, and what is noted."""

from collections import deque
from collections.abc import Mapping
from typing import Any

import pytest

from lab.doctor import examine
from lab.doctor.checks import judge
from lab.doctor.conversation import GONE, Message
from lab.doctor.examine import Examination
from lab.doctor.examined import Examined, Patient
from tests.doctor.patients import healthy

LIMITS = (
    *("LOOK_WITHIN", "TORCH_WITHIN", "CONNECT_WITHIN", "MEASURE_WITHIN"),
    *("OPEN_WITHIN", "ROLL_CALL_WAIT"),
)


class Played:
    """Nodes that answer as healthy ones do, but those that were told otherwise."""

    def __init__(
        self, count: int, *, silent: int | None = None, no_torch: int | None = None
    ) -> None:
        self._healthy = healthy(count)
        self._silent = silent
        self._no_torch = no_torch
        self.orders: list[Message] = []
        self._said: deque[Message] = deque()
        for rank, name in enumerate(self._healthy.names):
            self._say("look", rank, self._healthy.looks[name])
            if rank != no_torch:
                self._say("torch", rank, self._healthy.torch[name])

    def _say(self, kind: str, rank: int, facts: Mapping[str, Any]) -> None:
        if rank != self._silent:
            self._said.append({"type": kind, "node": rank, **facts})

    def end(self, rank: int, problem: str) -> None:
        """A node that ends before it has said anything."""
        self._said = deque(m for m in self._said if m["node"] != rank)
        self._said.appendleft({"type": GONE, "node": rank, "problem": problem})
        self._silent = rank

    def tell(self, order: Message) -> None:
        self.orders.append(order)
        names = self._healthy.names
        for rank, name in enumerate(names):
            if order["type"] == "connect":
                self._say("connected", rank, {"peers": self._healthy.connected[name]})
            if order["type"] == "open" and rank == 0:
                self._say("open", rank, {})
            if order["type"] == "roll-call" and rank != self._no_torch:
                self._say("roll-call", rank, self._healthy.roll_call[name])
        for one, other, _port in order.get("pairs", ()):
            facts = self._healthy.measured[names[one], names[other]]
            self._say("measured", one, {"peer": other, **facts})

    def left(self) -> list[Message]:
        """What has been said and not been heard."""
        return list(self._said)

    def hear(self, timeout: float) -> Message | None:
        return self._said.popleft() if self._said else None

    def close(self) -> None: ...


def examined(played: Played, count: int) -> Examined:
    patients = tuple(Patient(f"node{rank}", "not known") for rank in range(count))
    exam = Examined("ssh", "gloo", patients)
    Examination(exam, played, lambda _: None).run()
    return exam


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody is waited for: played nodes have answered when they are asked."""
    for name in LIMITS:
        monkeypatch.setattr(examine, name, 0.01)


@pytest.mark.parametrize("count", [1, 2, 5, 8])
def test_every_link_is_measured_and_nobody_measures_two_at_once(count: int) -> None:
    played = Played(count)
    exam = examined(played, count)

    assert [check for check in judge(exam) if check.status != "pass"] == []
    rounds = [order["pairs"] for order in played.orders if order["type"] == "measure"]
    for pairs in rounds:
        busy = [rank for one, other, _ in pairs for rank in (one, other)]
        assert len(busy) == len(set(busy))
    measured = sorted((one, other) for pairs in rounds for one, other, _ in pairs)
    assert measured == [(a, b) for a in range(count) for b in range(count) if a != b]


def test_many_nodes_measure_some_links_and_make_all_connections() -> None:
    exam = examined(Played(40), 40)
    assert len(exam.measured) == 40 * examine.ROUNDS
    assert sum(map(len, exam.connected.values())) == 40 * 39


def test_a_node_that_says_nothing_is_absent_and_left_out() -> None:
    played = Played(3, silent=1)
    exam = examined(played, 3)

    assert exam.problems == {"node1": "it does not answer"}
    (connect,) = (order for order in played.orders if order["type"] == "connect")
    assert [ports is None for ports in connect["ports"]] == [False, True, False]
    assert set(exam.measured) == {("node0", "node2"), ("node2", "node0")}


def test_why_a_node_has_gone_is_told() -> None:
    played = Played(3)
    played.end(2, "its Python is 3.9.2; it takes 3.11 or newer")
    exam = examined(played, 3)
    assert exam.problems == {"node2": "its Python is 3.9.2; it takes 3.11 or newer"}


def test_torch_that_is_never_there() -> None:
    exam = examined(Played(3, no_torch=2), 3)
    assert exam.torch["node2"]["error"].startswith("not done in")
    assert "node2" not in exam.roll_call
    assert exam.is_called


def test_without_the_master_nobody_is_called() -> None:
    played = Played(3, no_torch=0)
    exam = examined(played, 3)
    assert not [order for order in played.orders if order["type"] == "roll-call"]
    assert exam.is_called


def test_the_store_is_open_before_the_others_are_called() -> None:
    """Who finds nobody there tries again seconds later: a roll-call took 4 s instead of 0.3."""
    played = Played(3)
    opened: list[bool] = []
    tell = played.tell

    def noted(order: Message) -> None:
        if order["type"] == "roll-call":
            opened.append(not any(message["type"] == "open" for message in played.left()))
        tell(order)

    played.tell = noted  # type: ignore[method-assign]
    examined(played, 3)
    kinds = [order["type"] for order in played.orders]
    assert kinds.index("open") + 1 == kinds.index("roll-call")
    assert opened == [True]
