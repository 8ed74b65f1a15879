"""The judge of hangs on ranks whose own threads or processes have failed."""

from typing import Any

import pytest

from lab.diagnose.finding import Finding
from lab.diagnose.why import diagnose
from tests.diagnose.seen import NOW, Json, call, evidence, frames, rank
from tests.diagnose.test_handling import LOST, raised

STEP = [call(n) for n in range(1, 5)]
GET = [("python3.12/threading.py", "wait"), ("python3.12/queue.py", "get")]
RECEIVES = [("python3.12/multiprocessing/connection.py", "_recv"), ("x/queues.py", "get")]


def thread(exception: Json | None = None, *, ago: float = 500.0, name: str = "reader") -> Json:
    return {"name": name, "exception": exception or raised(), "time": NOW - ago}


def process(code: int | None, name: str = "Process-1") -> Json:
    return {"name": name, "pid": 40, "code": code}


def late(*, threads: Any = (), processes: Any = (), stack: Any = None, **changes: Any) -> Json:
    """A rank that is one call behind, and waits in a queue."""
    helpers = {"threads": list(threads), "processes": list(processes)}
    told = rank(STEP[:3], stack=stack or frames(20, *GET), **changes)
    return {**told, "helpers": helpers}


def judged(one: Json, *others: Json) -> Finding:
    return diagnose(evidence([*(others or (rank(STEP, waits=True),)), one]))


def test_a_thread_that_was_to_bring_what_a_rank_waits_for_has_failed() -> None:
    found = judged(late(threads=[thread()]))
    assert (found.kind, found.ranks, found.file, found.line) == ("failed", (1,), "data.py", 9)
    assert found.summary.startswith(
        "thread reader of rank 1 (node1, local 0) has ended: it raised ValueError: sample 7 is no "
        "number (data.py:9); rank 1 is 1 collective behind: it waits in get() at train.py:20"
    )
    assert [one.ranks for one in found.innocent] == [(0,)]
    assert found.cure is not None
    assert found.cure.startswith("mend what ended it")


@pytest.mark.parametrize(
    ("code", "words"), [(1, "has ended with exit code 1"), (-9, "was ended by SIGKILL")]
)
def test_so_has_a_process(code: int, words: str) -> None:
    found = judged(late(processes=[process(code)], stack=frames(20, *RECEIVES)))
    assert (found.kind, found.ranks, found.line) == ("failed", (1,), 20)
    assert found.summary.startswith(f"process Process-1 of rank 1 (node1, local 0) {words}; ")


def test_what_a_process_has_raised_is_told_where_it_is_known() -> None:
    one = {**process(1), "exception": raised()}
    found = judged(late(processes=[one], stack=frames(20, *RECEIVES)))
    assert (found.kind, found.ranks, found.file, found.line) == ("failed", (1,), "data.py", 9)
    assert "process Process-1 of rank 1 (node1, local 0) has ended: it raised" in found.summary


def test_all_ranks_are_named_where_each_has_lost_its_own() -> None:
    ranks = [{**rank(stack=frames(20, *GET)), "helpers": {"threads": [thread()]}} for _ in range(2)]
    found = diagnose(evidence(ranks))
    assert (found.kind, found.severity, found.ranks) == ("failed", "error", (0, 1))


@pytest.mark.parametrize(
    ("why", "one"),
    [
        ("it computes", late(threads=[thread()], stack=frames(20, code="x @ x"), share=1.0)),
        ("it sleeps", late(threads=[thread()], stack=frames(20, code="time.sleep(9)"))),
        ("it waits for the network", late(threads=[thread()], stack=frames(20, ("ssl.py", "r")))),
        ("a process goes on", late(threads=[thread()], processes=[process(None)])),
        ("one of two processes goes on", late(processes=[process(1), process(None, "other")])),
        ("it went on for long", late(threads=[thread(ago=9e9)])),
    ],
)
def test_it_is_only_told_where_it_may_have_nothing_to_do_with_it(why: str, one: Json) -> None:
    if why == "it went on for long":
        one["collectives"] = [call(n) for n in range(1, 40)]
        found = judged(one, rank([call(n) for n in range(1, 41)], waits=True))
    else:
        found = judged(one)
    assert (found.kind, found.ranks) == ("busy-alone", (1,)), why
    told = [line for line in found.evidence if "of rank 1 (node1, local 0) has ended" in line]
    assert len(told) == 1, why
    assert "has ended" not in found.summary


@pytest.mark.parametrize(
    ("stack", "kind"),
    [
        (frames(30, *GET), "busy-alone"),  # another thread of the script's
        (frames(30, ("torch/serialization.py", "save"))[:1], "busy-alone"),
        (
            frames(30, ("python3.12/threading.py", "wait"), ("tqdm/_monitor.py", "run"))[:2],
            "failed",
        ),
    ],
)
def test_another_thread_may_bring_it_unless_it_is_a_librarys_that_waits(
    stack: list[Json], kind: str
) -> None:
    one = late(threads=[thread()])
    one["threads"].append({"name": "other", "main": False, "frames": stack})
    assert judged(one).kind == kind


def test_what_others_go_on_without_is_no_reason() -> None:
    """A thread that sends metrics to a server which nobody reaches."""
    other = {**rank(STEP, waits=True), "helpers": {"threads": [thread()]}}
    assert judged(late(threads=[thread()]), other).kind == "busy-alone"
    other["helpers"] = {"threads": [thread(raised(line=30))]}
    assert judged(late(threads=[thread()]), other).kind == "failed"


def test_who_has_only_lost_its_peer_or_has_ended_well_is_not_told_of() -> None:
    lost = thread(raised("RuntimeError", LOST))
    found = judged(late(threads=[lost], processes=[process(0)]))
    assert found.kind == "busy-alone"
    assert "has ended" not in "".join(found.evidence)


def test_of_other_findings_it_is_a_sentence_of_the_evidence() -> None:
    skips = rank([*STEP[:3], call(4, "barrier", 14, shape=())], waits=True)
    found = judged({**skips, "helpers": {"threads": [thread()]}}, *[rank(STEP, waits=True)] * 2)
    assert (found.kind, found.ranks) == ("extra-collective", (2,))
    assert "thread reader of rank 2" in "".join(found.evidence)
