"""The judge of hangs on ranks that handle an exception while the others go on."""

from typing import Any

import pytest

from lab.diagnose.finding import Finding
from lab.diagnose.why import diagnose
from tests.diagnose.seen import C10D, Json, call, evidence, frames, rank

STEP = [call(n) for n in range(1, 5)]
BARRIER = call(4, "barrier", 14, shape=())
LOST = "[gloo/transport/tcp/pair.cc:553] Connection closed by peer"


def raised(kind: str = "ValueError", message: str = "sample 7 is no number", line: int = 9) -> Json:
    chain = [{"kind": kind, "message": message}]
    return {"kind": kind, "message": message, "file": "data.py", "line": line, "chain": chain}


def handling(told: Json, exception: Json | None = None) -> Json:
    """A rank that handles an exception where it is."""
    told["threads"][0]["handles"] = exception or raised()
    return told


def waiting(**changes: Any) -> Json:
    """A rank that waits in the fourth call."""
    return rank(STEP, waits=True, **changes)


def cleans_up(exception: Json | None = None) -> Json:
    """One that waits in a barrier in its place, which is in a `finally`."""
    return handling(rank([*STEP[:3], BARRIER], waits=True), exception)


def place(finding: Finding) -> tuple[str, tuple[int, ...], str | None, int | None]:
    return finding.kind, finding.ranks, finding.file, finding.line


@pytest.mark.parametrize("others", [1, 2, 3])
def test_who_calls_another_collective_since_it_has_raised_has_failed(others: int) -> None:
    found = diagnose(evidence([*[waiting() for _ in range(others)], cleans_up()]))
    assert place(found) == ("failed", (others,), "data.py", 9)
    words = f"rank {others} (node{others}, local 0) raised ValueError: sample 7 is no number"
    does = "and while it handles that called barrier #4 [] float32 of the default group"
    assert found.summary.startswith(f"{words} (data.py:9), {does} at train.py:14 (main), where ")
    assert found.summary.endswith("called all_reduce [4] float32 at train.py:10 (main)")
    assert [one.ranks for one in found.innocent] == [tuple(range(others))]
    assert "as many ranks" not in "".join(found.evidence)


def test_the_majority_is_not_right_where_it_has_raised() -> None:
    found = diagnose(evidence([waiting(), cleans_up(), cleans_up()]))
    assert place(found) == ("failed", (1, 2), "data.py", 9)
    assert "and while they handle that called barrier" in found.summary
    assert [one.ranks for one in found.innocent] == [(0,)]


def test_who_differs_without_an_exception_is_named_among_those_that_all_handle_one() -> None:
    no_cache = raised("FileNotFoundError", "cache")
    other = [*STEP[:3], BARRIER]
    ranks = [handling(waiting(), no_cache) for _ in range(2)]
    found = diagnose(evidence([*ranks, handling(rank(other, waits=True), no_cache)]))
    assert (found.kind, found.ranks, found.line) == ("extra-collective", (2,), 14)
    assert "FileNotFoundError" not in found.summary
    # Most began by handling one; the one that has not has an own way, which nobody else knows.
    found = diagnose(evidence([*ranks, rank(other, waits=True)]))
    assert (found.kind, found.ranks, found.line) == ("extra-collective", (2,), 14)


def test_who_is_late_while_it_handles_an_exception_is_told_with_it() -> None:
    """It may be all right: no cache, so that it makes one."""
    makes = handling(rank(STEP[:3], stack=frames(20)), raised("FileNotFoundError", "cache"))
    found = diagnose(evidence([waiting(), makes]))
    assert (found.kind, found.ranks, found.line) == ("busy-alone", (1,), 20)
    assert found.summary.endswith(
        "; rank 1 does so while it handles an exception: it raised FileNotFoundError: cache "
        "(data.py:9)"
    )


def test_what_all_handle_who_tell_of_it_is_nobodys_excuse() -> None:
    no_cache = raised("FileNotFoundError", "cache")
    late = handling(rank(STEP[:3], stack=frames(20)), no_cache)
    outside = waiting(source="py-spy")
    found = diagnose(evidence([handling(waiting(), no_cache), late, outside]))
    assert (found.kind, found.ranks) == ("busy-alone", (1,))
    assert "cache" not in found.summary
    # Who has ended handles nothing.
    ended = rank(ended={"code": 0, "signal": None})
    lingers = handling(rank(stack=frames(20)), no_cache)
    found = diagnose(evidence([ended, lingers]))
    assert (found.kind, found.ranks) == ("busy-alone", (1,))
    assert "it raised FileNotFoundError: cache (data.py:9)" in found.summary


def test_who_leaves_the_group_since_it_has_raised_has_failed() -> None:
    leaves = rank(STEP[:3], stack=frames(40, (C10D, "destroy_process_group")))
    found = diagnose(evidence([waiting(), handling(leaves)]))
    assert place(found) == ("failed", (1,), "data.py", 9)
    assert "while it handles that is in destroy_process_group() at train.py:40" in found.summary


def test_who_has_left_the_group_before_its_end_is_why_others_have_lost_it() -> None:
    left = rank(stack=frames(41, code="upload(log)"))
    victim = waiting(exception=raised("RuntimeError", LOST))
    failure = {"rank": 0, "node": "node0", "kind": "exception", "exit_code": 1, "message": LOST}
    failure |= {"exception": "RuntimeError", "chain": victim["exception"]["chain"]}
    given = evidence([victim, handling(left)], because="failure", failure=failure)
    found = diagnose(given)
    assert place(found) == ("failed", (1,), "data.py", 9)
    assert "has left its process groups, and is at train.py:41" in found.summary
    assert [one.ranks for one in found.innocent] == [(0,)]
    # What it handles is itself a consequence.
    del given["ranks"]["1"]["threads"][0]["handles"]
    handling(given["ranks"]["1"], raised("RuntimeError", LOST))
    found = diagnose(given)
    assert (found.kind, found.ranks) == ("busy-alone", (1,))
    assert LOST not in found.summary


def test_of_a_circle_who_has_raised_is_guilty() -> None:
    receives = frames(12, (C10D, "recv"))
    receives[0]["arguments"] = {"src": 1, "group": "0"}
    found = diagnose(evidence([rank(STEP[:3], stack=receives), cleans_up()]))
    assert place(found) == ("failed", (1,), "data.py", 9)
    assert [one.ranks for one in found.innocent] == [(0,)]
    assert "recv from rank 1" in found.innocent[0].what
