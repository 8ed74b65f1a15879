"""Ranks that have lost a peer and say something else: whom they missed is known all the same."""

from typing import Any

import pytest

from lab.diagnose.why import diagnose
from tests.diagnose.seen import C10D, Json, call, evidence, frames, rank

LOST = "[gloo/transport/tcp/pair.cc:553] Connection closed by peer"
STEP = [call(n) for n in range(1, 5)]


def victim(kind: str, how: str, *, is_done: bool = True, **changes: Any) -> Json:
    """It has lost its peer at line 10, and raised at line 12."""
    chain = [
        {"kind": kind, "message": "1", "file": "train.py", "line": 12, "how": None},
        {"kind": "RuntimeError", "message": LOST, "file": "train.py", "line": 10, "how": how},
    ]
    raised = {"kind": kind, "message": "1", "file": "train.py", "line": 12, "chain": chain}
    calls = [*STEP[:3], {**STEP[3], "done": is_done}]
    ended = {"code": 1, "signal": None}
    return rank(calls, stack=frames(12), exception=raised, ended=ended, **changes)


def failure(one: Json, kind: str = "exception") -> Json:
    said = {name: one["exception"][name] for name in ("message", "file", "line", "chain")}
    exception = one["exception"]["kind"] if kind == "exception" else None
    return {
        "rank": 0,
        "node": "node0",
        "kind": kind,
        "exit_code": 1,
        "exception": exception,
        **said,
    }


WELL = {"code": 0, "signal": None}


@pytest.mark.parametrize("how", ["hidden", "cause", "context"])
@pytest.mark.parametrize("is_done", [True, False])
def test_what_a_victim_raises_afterwards_does_not_hide_where_it_waited(
    how: str, is_done: bool
) -> None:
    ranks = [victim("TrainingFailed", how, is_done=is_done) for _ in range(2)]
    well = rank(STEP[:3], ended=WELL)
    found = diagnose(evidence([*ranks, well], because="failure", failure=failure(ranks[0])))
    assert (found.kind, found.ranks) == ("ended-early", (2,))
    assert [(one.ranks, one.line) for one in found.innocent] == [((0, 1), 10)]


def test_victims_that_choose_a_code_are_none_of_the_guilty() -> None:
    ranks = [
        victim("SystemExit", "context"),
        rank(STEP, stack=frames(10, (C10D, "all_reduce"))),
        rank(
            exception=victim("SystemExit", "context")["exception"],
            ended={"code": 1, "signal": None},
        ),
    ]
    well = rank(STEP[:3], ended=WELL)
    told = failure(ranks[0], "exit")
    found = diagnose(evidence([*ranks, well], because="failure", failure=told))
    assert (found.kind, found.ranks) == ("ended-early", (3,))
