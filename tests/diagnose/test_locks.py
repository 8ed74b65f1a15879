"""Whom `why` names where ranks wait for a file lock that another one holds."""

from lab.diagnose.why import diagnose
from tests.diagnose.seen import Json, call, evidence, frames, rank

BEFORE = [call(1, "barrier", 5)]


def process(pid: int, *holders: int) -> Json:
    return {"state": "S", "name": f"m/{pid}", "lock_of": [f"m/{one}" for one in holders]}


def queues(pid: int, holder: int) -> Json:
    stack = frames(8, code="fcntl.flock(f, fcntl.LOCK_EX)")
    return rank(BEFORE, stack=stack, process=process(pid, holder))


def test_who_calls_a_collective_while_it_holds_the_lock_is_named() -> None:
    holds = rank([*BEFORE, call(2, "barrier", 10)], waits=True, process=process(70))
    found = diagnose(evidence([holds, queues(71, 70), queues(72, 70)]))
    assert (found.kind, found.ranks, found.line) == ("deadlock", (0,), 10)
    assert "holds a file lock for which ranks 1, 2 wait, and waits" in found.summary
    assert [one.ranks for one in found.innocent] == [(1, 2)]
    assert "while it holds a lock" in (found.cure or "")


def test_who_holds_the_lock_and_does_something_else_is_late() -> None:
    holds = rank(BEFORE, stack=frames(12, code="download()"), process=process(70))
    found = diagnose(evidence([queues(71, 70), holds, queues(72, 70)]))
    assert (found.kind, found.ranks, found.line) == ("busy-alone", (1,), 12)
    assert "ranks 0, 2 wait for it in the queue for a file lock of rank 1" in found.summary


def test_a_lock_of_a_process_that_is_no_rank_names_nobody() -> None:
    found = diagnose(evidence([queues(71, 5), queues(72, 5)]))
    assert (found.kind, found.ranks) == ("unknown", ())


def test_two_that_hold_what_the_other_waits_for_are_both_named() -> None:
    found = diagnose(evidence([queues(70, 71), queues(71, 70)]))
    assert (found.kind, found.ranks) == ("deadlock", (0, 1))
    assert "while it holds a lock" in (found.cure or "")
