"""How a job ended, from what its ranks and Slurm have told."""

from dataclasses import replace
from typing import Any

import pytest

from lab.batch.job_state import JobState
from lab.batch.judge import Told, judge
from lab.diagnose.finding import Finding
from lab.node.protocol import Message
from lab.topology import parse_topology

PAIR = parse_topology("{nodes: 2, on: slurm, slurm: {launcher: srun}}")


def began(rank: int, at: float = 0.0, world: int = 2) -> Message:
    where = {"at": at, "type": "started", "node": f"node{rank}", "rank": rank, "restart": 0}
    return {**where, "world": {"master": "node0:29500", "ranks": world}}


def ended(rank: int, code: int = 0, at: float = 9.0, signal: int | None = None) -> Message:
    where = {"at": at, "type": "exit", "node": f"node{rank}", "rank": rank}
    return {**where, "code": code, "signal": signal, "oom_limit": None}


def raised(rank: int, kind: str, message: str, at: float) -> Message:
    where = {"at": at, "type": "exception", "node": f"node{rank}", "rank": rank}
    chain = [{"kind": kind, "message": message}]
    more = {"file": "train.py", "line": 7, "traceback": "", "chain": chain}
    return {**where, "kind": kind, "message": message, **more}


def told(*events: Message, state: str = "FAILED", code: int | None = 1, **more: Any) -> Told:
    given = {"topology": PAIR, "words": "", **more}
    return Told(events=events, job=JobState(state), code=code, **given)


LOST = "[../gloo/transport/tcp/pair.cc] Connection closed by peer [10.0.0.2]:1"
BEGAN = (began(0), began(1))


def test_all_ended_well() -> None:
    verdict = judge(told(*BEGAN, ended(0), ended(1, at=10.5), state="COMPLETED", code=0))
    assert (verdict.kind, verdict.exit_code, verdict.seconds) == ("ok", 0, 10.5)
    assert verdict.summary == "2 ranks ended well"


def test_a_failure_and_who_was_ended_because_of_it() -> None:
    events = raised(1, "ValueError", "no luck", 4.0), ended(1, 1, 5.0), ended(0, 143, 6.0, 15)
    verdict = judge(told(*BEGAN, *events))
    assert verdict.first is not None
    assert (verdict.kind, verdict.exit_code, verdict.first.rank) == ("exception", 1, 1)
    assert (verdict.ended, verdict.others, verdict.victims) == ((0,), (), ())


def test_a_victim_that_ends_first_is_none_the_less_a_victim() -> None:
    events = raised(0, "RuntimeError", LOST, 3.0), ended(0, 1, 3.5), ended(1, 7, 4.0)
    verdict = judge(told(*BEGAN, *events))
    assert verdict.first is not None
    assert (verdict.first.rank, verdict.exit_code, verdict.victims) == (1, 7, (0,))


def test_a_rank_that_was_killed_by_somebody_is_the_first() -> None:
    verdict = judge(told(*BEGAN, ended(1, 137, 4.0, 9), ended(0, 143, 5.0, 15)))
    assert verdict.first is not None
    assert (verdict.kind, verdict.first.rank, verdict.ended) == ("signal", 1, (0,))


def test_a_node_without_a_last_word_is_lost() -> None:
    events = raised(0, "RuntimeError", LOST, 3.0), ended(0, 1, 3.5)
    verdict = judge(told(*BEGAN, *events, state="NODE_FAIL", code=None))
    assert verdict.first is not None
    assert (verdict.kind, verdict.first.node, verdict.exit_code) == ("node-lost", "node1", 1)
    assert "lost a node (NODE_FAIL)" in verdict.summary

    # srun has ended the others.
    verdict = judge(told(*BEGAN, ended(0, 137, signal=9), state="NODE_FAIL", code=None))
    assert verdict.first is not None
    assert (verdict.kind, verdict.first.node, verdict.ended) == ("node-lost", "node1", (0,))


def test_killed_for_its_memory() -> None:
    verdict = judge(told(*BEGAN, ended(0, 1), state="OUT_OF_MEMORY", code=None))
    assert verdict.exit_code == 1, "a rank that has failed by itself comes first"
    verdict = judge(told(*BEGAN, state="OUT_OF_MEMORY", code=None))
    assert (verdict.kind, verdict.exit_code) == ("signal", 137)


@pytest.mark.parametrize(
    ("state", "kind", "code", "words"),
    [
        ("TIMEOUT", "timeout", 124, "the job reached its time limit (TIMEOUT)"),
        ("DEADLINE", "timeout", 124, "the job reached its deadline (DEADLINE)"),
        ("CANCELLED", "interrupted", 130, "the job was cancelled (CANCELLED)"),
        ("PREEMPTED", "interrupted", 130, "the job was preempted (PREEMPTED)"),
    ],
)
def test_ended_by_slurm(state: str, kind: str, code: int, words: str) -> None:
    verdict = judge(told(*BEGAN, ended(0, 143, signal=15), state=state, code=None))
    assert (verdict.kind, verdict.exit_code, verdict.summary) == (kind, code, words)
    assert (verdict.first, verdict.ended) == (None, (0, 1))


def test_a_limit_of_memory_is_laid_to_the_rank_of_its_host() -> None:
    """Slurm kills the whole step: no rank has a last word."""
    events = [{**began(rank), "host": f"n{rank}"} for rank in (0, 1)]
    for host, rank in (("n1", 1), ("", 0), ("elsewhere", 0)):
        known = told(*events, code=137)
        job = JobState("OUT_OF_MEMORY", hosts=host)
        verdict = judge(replace(known, job=job))
        assert verdict.first is not None
        assert (verdict.kind, verdict.exit_code, verdict.first.rank) == ("signal", 137, rank)
        assert "was killed for its memory" in verdict.summary


def test_a_lost_host_is_the_one_that_slurm_names() -> None:
    """It kills the ranks of all others, and none of them has a last word."""
    events = [{**began(rank, world=3), "host": f"n{rank}.cluster"} for rank in (0, 1, 2)]
    for hosts, rank in (("n1", 1), ("n[1-2]", 1), ("n[0-2]", 0), ("", 0), ("elsewhere", 0)):
        known = told(*events, state="NODE_FAIL", code=None)
        verdict = judge(replace(known, job=JobState("NODE_FAIL", hosts=hosts)))
        assert verdict.first is not None
        assert (verdict.kind, verdict.first.rank) == ("node-lost", rank)
        assert verdict.first.node == f"node{rank}"


def test_no_rank_has_begun() -> None:
    verdict = judge(told(code=2, words="module: command not found"))
    assert (verdict.kind, verdict.exit_code) == ("not-started", 2)
    assert verdict.summary == "no rank has begun: module: command not found"
    assert judge(told(code=None)).summary == "no rank has begun: failed (FAILED)"


def test_the_script_failed_after_its_ranks() -> None:
    verdict = judge(told(*BEGAN, ended(0), ended(1), code=2, words="lab: error: why"))
    assert (verdict.kind, verdict.exit_code) == ("lab-error", 2)
    assert verdict.summary == "all ranks ended well, and the job not: lab: error: why"
    verdict = judge(told(*BEGAN, ended(0), ended(1), code=None))
    assert (verdict.kind, verdict.exit_code) == ("lab-error", 1)


def test_words_of_a_host_that_do_not_arrive() -> None:
    verdict = judge(told(began(0), ended(0), state="COMPLETED", code=0))
    assert (verdict.kind, verdict.exit_code) == ("lab-error", 1)
    assert verdict.summary.startswith("nothing that node1 wrote has arrived here: ")
    elastic = parse_topology("{nodes: 1-2, on: slurm}")
    verdict = judge(told(began(0), ended(0), state="COMPLETED", code=0, topology=elastic))
    assert verdict.kind == "ok"


def test_an_elastic_job_that_went_on_without_what_it_lost_ended_well() -> None:
    elastic = parse_topology("{nodes: 1-2, on: slurm}")
    first_world = (
        *BEGAN,
        raised(1, "ValueError", "no luck", 2.0),
        ended(1, 1, 3.0),
        ended(0, 143, 3.0, 15),
    )
    last_world = (began(0, 4.0, world=1), ended(0, at=9.0))
    for lost in (first_world, BEGAN):  # a rank that failed; a node that went without a word
        verdict = judge(told(*lost, *last_world, state="COMPLETED", code=0, topology=elastic))
        assert (verdict.kind, verdict.exit_code) == ("ok", 0)
        assert verdict.summary == "1 rank ended well"
    verdict = judge(told(*first_world, topology=elastic))
    assert verdict.kind == "exception"


def test_a_node_that_was_lost_after_torchrun_had_begun_anew() -> None:
    before = *BEGAN, ended(0, 143, 3.0, 15), ended(1, 143, 3.0, 15)
    again = began(0, 5.0), began(1, 5.0), ended(0, 143, 9.0, 15)
    verdict = judge(told(*before, *again, state="NODE_FAIL", code=None))
    assert verdict.first is not None
    assert (verdict.kind, verdict.first.rank, verdict.ended) == ("node-lost", 1, (0,))


def test_ranks_that_were_ended_since_they_waited_in_vain() -> None:
    finding = Finding("busy-alone", "error", "rank 1 sleeps", ranks=(1,))
    because = {"node": "node0", "rank": 0, "because": "stall"}
    why = {"at": 4.0, "type": "why", **because, "stalled_s": 3.0, "finding": finding.to_json()}
    stop = {"at": 4.1, "type": "stop", **because, "grace": 1.0, "ranks": [0]}
    events = ended(0, 143, 5.0, 15), raised(1, "RuntimeError", LOST, 5.1), ended(1, 1, 5.2)
    verdict = judge(told(*BEGAN, why, stop, *events))
    assert (verdict.kind, verdict.exit_code, verdict.first) == ("stalled", 75, None)
    assert (verdict.why, verdict.ended) == (finding, (0, 1))


def test_what_the_ranks_waited_for_is_told_of_a_job_whose_time_is_up() -> None:
    finding = Finding("paused", "error", "rank 1 is paused", ranks=(1,))
    where = {"node": "node0", "rank": 0, "because": "stall", "stalled_s": 3.0}
    why = {"at": 4.0, "type": "why", **where, "finding": finding.to_json()}
    killed = ended(0, 143, 9.0, 15), ended(1, 137, 9.0, 9)
    verdict = judge(told(*BEGAN, why, *killed, state="TIMEOUT", code=None))
    assert (verdict.kind, verdict.why) == ("timeout", finding)
    went_on = {"at": 5.0, "type": "progress", "node": "node0", "rank": 0}
    verdict = judge(told(*BEGAN, why, went_on, *killed, state="TIMEOUT", code=None))
    assert (verdict.kind, verdict.why) == ("timeout", None)


def test_a_job_of_which_slurm_says_that_it_ended_well_has() -> None:
    """Its file with the exit code may come later, over NFS."""
    good = judge(told(*BEGAN, ended(0), ended(1), state="COMPLETED", code=None))
    assert (good.kind, good.exit_code) == ("ok", 0)
    assert judge(told(*BEGAN, ended(0), ended(1), code=None)).exit_code == 1
