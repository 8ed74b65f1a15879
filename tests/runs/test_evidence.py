"""What is kept of what the agents tell."""

from typing import Any

import pytest

from lab.runs.evidence import Record


def told(kind: str, node: str, **fields: Any) -> dict[str, Any]:
    return {"type": kind, "rank": 0, "node": node, **fields}


def test_a_rank_that_goes_on_elsewhere_is_not_ended_by_news_of_the_old_one() -> None:
    record = Record({0: "node0"}, ["node0", "node1"])
    record.on_message(told("started", "node0", pid=1))
    record.on_message(told("started", "node1", pid=2))
    record.on_message(told("exit", "node0", code=1, signal=None))
    record.on_message(told("exception", "node0"))
    assert (record.ranks[0].ended, record.ranks[0].exception) == (None, None)
    record.on_message(told("exit", "node1", code=0, signal=None))
    assert record.ranks[0].ended == {"code": 0, "signal": None}


def test_what_was_out_of_reach_before_there_was_progress_is_forgotten() -> None:
    record = Record({0: "node0"}, ["node0", "node1"])
    cut = {"peers": {"node1": "timeout"}, "master": {"reach": "timeout"}}
    record.on_node("node0", {"port": 1, "ptrace": None, **cut})
    record.on_node("node0", {"port": 1, "ptrace": None, "peers": {}, "master": None})  # a pulse
    assert record.nodes["node0"].peers == cut["peers"]
    record.forget_pulses()
    assert (record.nodes["node0"].peers, record.nodes["node0"].master) == ({}, None)


STACK = {
    "name": "MainThread",
    "main": True,
    "frames": [{"file": "a.py", "line": 1, "function": "f"}],
}


@pytest.mark.parametrize(
    ("answer", "end"),
    [
        ({"error": "its probe broke off"}, {"code": 0, "signal": None}),
        ({"probe": {"threads": [{**STACK, "frames": []}]}}, {"code": 0, "signal": None}),
        ({"probe": {"threads": [STACK]}}, None),
    ],
    ids=["nothing", "no stack", "stack"],
)
def test_a_rank_that_was_at_its_end_when_it_was_looked_at_has_ended(
    answer: dict[str, Any], end: dict[str, Any] | None
) -> None:
    record = Record({0: "node0"}, ["node0"])
    record.on_message(told("started", "node0", pid=1))
    record.ranks[0].state = {"source": None, "probe": None, "process": None, **answer}
    evidence = record.evidence("failure", None, None)
    record.on_message(told("exit", "node0", code=0, signal=None))
    record.hear_out(evidence)
    assert evidence["ranks"]["0"]["ended"] == end
