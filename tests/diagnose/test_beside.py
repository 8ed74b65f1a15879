"""What the judge tells beside its first finding: other ranks' troubles, which are their own."""

from typing import Any

import pytest

from lab.diagnose.finding import Finding
from lab.diagnose.why import diagnose
from tests.diagnose.seen import C10D, Json, call, evidence, frames, rank

STEP = [call(n) for n in range(1, 5)]
LOADER = ("torch/utils/data/dataloader.py", "_next_data")


def waiting() -> Json:
    return rank(STEP, waits=True)


def raised(kind: str, message: str, line: int) -> Json:
    chain = [{"kind": kind, "message": message}]
    return {"kind": kind, "message": message, "file": "train.py", "line": line, "chain": chain}


def test_who_is_late_for_another_reason_is_told_once() -> None:
    loads = rank(STEP[:3], stack=frames(20, LOADER))
    sleeps = rank(STEP[:3], stack=frames(30, code="time.sleep(9)"))
    found = diagnose(evidence([waiting(), loads, waiting(), sleeps]))
    assert (found.kind, found.ranks, found.line) == ("data-loader", (1,), 20)
    assert [one.ranks for one in found.innocent] == [(0, 2)]
    (_, told) = found.evidence
    assert told == (
        "besides, rank 3 is at train.py:30 (main): `time.sleep(9)`, using no processor time "
        "(state S, 0% of a core), and is waited for, too"
    )


def test_who_is_late_while_another_one_is_paused() -> None:
    paused = rank(STEP[:3], stack=frames(20), state="T")
    found = diagnose(evidence([waiting(), paused, rank(STEP[:3], stack=frames(30))]))
    assert (found.kind, found.ranks) == ("paused", (1,))
    assert found.evidence[-1].startswith("besides, rank 2 is at train.py:30")


def test_who_is_paused_while_another_one_has_called_something_else() -> None:
    other = rank([*STEP[:3], call(4, "barrier", 14)], waits=True)
    paused = rank(STEP[:3], stack=frames(20), state="T")
    found = diagnose(evidence([waiting(), other, waiting(), paused]))
    assert (found.kind, found.ranks) == ("extra-collective", (1,))
    assert found.evidence[-1].startswith("besides, rank 3 is at train.py:20 (main)")
    assert "(state T, 0% of a core)" in found.evidence[-1]


def test_who_has_raised_for_another_reason() -> None:
    first = raised("ValueError", "sample 7", 20)
    ranks = [
        waiting(),
        rank(exception=first),
        rank(exception=first),
        rank(exception=raised("KeyError", "'x'", 30)),
        rank(stack=frames(10, (C10D, "all_reduce")), exception=raised("KeyError", "'x'", 30)),
        rank(exception=raised("DistNetworkError", "Connection reset by peer", 10)),
    ]
    failure = {"rank": 1, "node": "node1", "kind": "exception", "exit_code": 1, **first}
    failure |= {"exception": failure["kind"], "kind": "exception"}
    found = diagnose(evidence(ranks, because="failure", failure=failure))
    assert (found.kind, found.ranks, found.line) == ("failed", (1, 2), 20)
    assert found.evidence == (
        "besides, ranks 3, 4 (node3, node4) raised KeyError: 'x' (train.py:30)",
    )


def test_who_handles_another_exception() -> None:
    ranks = [waiting(), waiting()]
    for exception in (raised("ValueError", "sample 7", 20), raised("KeyError", "'x'", 30)):
        cleans_up = rank([*STEP[:3], call(4, "barrier", 14)], waits=True)
        cleans_up["threads"][0]["handles"] = exception
        ranks.append(cleans_up)
    found = diagnose(evidence([*ranks, waiting()]))
    assert (found.kind, found.ranks, found.line) == ("failed", (2,), 20)
    assert [one.ranks for one in found.innocent] == [(0, 1, 4)]
    assert (
        found.evidence[-1] == "besides, rank 3 (node3, local 0) raised KeyError: 'x' (train.py:30)"
    )


def ends(waited: float, **failure: Any) -> Finding:
    """Rank 1 fails, and rank 0 has waited for rank 2 for so many seconds."""
    waits = rank([*STEP[:3], call(4, ago=waited)], waits=True)
    late = rank(STEP[:3], stack=frames(30, code="time.sleep(9)"))
    told = {"rank": 1, "node": "node1", "kind": "exit", "exit_code": 3, **failure}
    ended = rank(ended={"code": told["exit_code"], "signal": None})
    return diagnose(evidence([waits, ended, late], because="failure", failure=told))


def test_who_computes_while_another_one_fails_has_no_trouble() -> None:
    found = ends(0.5)
    assert (found.kind, found.ranks, found.evidence) == ("failed", (1,), ())


@pytest.mark.parametrize("end", [{}, {"kind": "signal", "exit_code": 137}])
def test_for_whom_all_had_waited_is_told_of_a_rank_that_ends_without_a_word(end: Json) -> None:
    found = ends(3.0, **end)
    assert (found.kind, found.ranks) == ("failed", (1,))
    assert [one.ranks for one in found.innocent] == [(0,)]
    assert found.evidence == (
        "when rank 1 ended, rank 0 had waited for 3 s in all_reduce #4 [4] float32 of the "
        "default group for rank 2, which is at train.py:30 (main): `time.sleep(9)`, using no "
        "processor time",
    )


@pytest.mark.parametrize(
    "end",
    [
        {"file": "train.py", "line": 3},
        {"kind": "exception", "exception": "ValueError", "message": "no", "file": "train.py"},
        {"kind": "signal", "exit_code": 137, "oom_limit": 1 << 30},
    ],
)
def test_who_says_why_it_ends_had_no_need_of_others_for_it(end: Json) -> None:
    assert ends(3.0, **end).evidence == ()
