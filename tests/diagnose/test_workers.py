"""What the judge says of the processes that a data loader has begun."""

import pytest

from lab.diagnose.finding import Finding
from lab.diagnose.why import diagnose
from tests.diagnose.seen import Json, call, evidence, frames, rank

STEP = [call(n) for n in range(1, 5)]
FILE = "torch/utils/data/dataloader.py"
ITERATOR = "_MultiProcessingDataLoaderIter"
IN_PROCESS = [(FILE, "_SingleProcessDataLoaderIter._next_data")]
WITH_WORKERS = [(FILE, f"{ITERATOR}.{name}") for name in ("_try_get_data", "_next_data")]


def loads(states: str, stack: list[tuple[str, str]] = WITH_WORKERS) -> Finding:
    """The verdict on a rank that waits for its loader and has child processes in such states."""
    children: list[Json] = [{"pid": 40 + n, "state": state} for n, state in enumerate(states)]
    late = rank(STEP[:3], stack=frames(20, *stack))
    late["process"]["children"] = children
    found = diagnose(evidence([rank(STEP, waits=True), late]))
    assert (found.kind, found.ranks, found.line) == ("data-loader", (1,), 20)
    return found


@pytest.mark.parametrize(
    ("states", "told"),
    [
        ("S", "child process of rank 1: 40 sleeps (state S)"),
        ("SDSR", "child processes of rank 1: 40, 42 sleep (state S), 41 waits for the system, as "
         "for a disk (state D), 43 computes (state R)"),
        ("I", "child process of rank 1: 40 is (state I)"),
    ],
)  # fmt: skip
def test_the_states_of_the_workers_are_told(states: str, told: str) -> None:
    found = loads(states)
    assert told in found.evidence
    assert found.cure is not None
    assert found.cure.startswith("look at what this rank reads")


def test_a_worker_that_is_stopped_is_why() -> None:
    found = loads("STT")
    assert found.summary.endswith("; of rank 1 child processes 41, 42 are stopped (state T)")
    assert found.cure == "let them go on (kill -CONT 41 42 on node1), or end the run"
    assert loads("ST").summary.endswith("; of rank 1 child process 41 is stopped (state T)")


def test_a_worker_that_has_ended_is_told_as_that() -> None:
    assert loads("SZ").summary.endswith("; of rank 1 child process 41 has ended (state Z)")


def test_other_children_are_none_of_the_loaders() -> None:
    found = loads("ST", IN_PROCESS)
    assert "child process" not in found.summary + "".join(found.evidence)
    assert "child process" not in "".join(loads("").evidence)


def process(pid: int, *stack: tuple[str, int, str]) -> Json:
    """A child process with such a stack: file, line and function, innermost first."""
    seen = [
        {"file": file, "line": line, "function": function, "user": not file.startswith("/")}
        for file, line, function in stack
    ]
    return {"pid": pid, "threads": [{"name": "MainThread", "main": True, "frames": seen}]}


BEGINNING = ("/usr/lib/python3/multiprocessing/process.py", 314, "Process._bootstrap")
FORKED = [BEGINNING, ("train.py", 20, "main")]
"""A process that was forked has its parent's stack below its own."""
IDLE = process(40, ("/usr/lib/python3/selectors.py", 415, "select"), *FORKED)
READS = (("/site-packages/fs.py", 7, "read"), ("data.py", 12, "Words.__getitem__"), *FORKED)


def test_a_worker_is_told_with_the_line_of_its_dataset() -> None:
    late = rank(STEP[:3], stack=frames(20, *WITH_WORKERS))
    late["process"]["children"] = [{"pid": 40 + n, "state": "S"} for n in range(3)]
    late["children"] = [IDLE, process(41, *READS)]
    found = diagnose(evidence([rank(STEP, waits=True), late]))
    told = "; worker process 41 of rank 1 is at data.py:12 (Words.__getitem__)"
    assert found.summary.endswith(told)
    assert "child process of rank 1: 41 at data.py:12 (Words.__getitem__)" in found.evidence
    assert (found.kind, found.line) == ("data-loader", 20)
    late["children"].append(process(42, *READS))
    found = diagnose(evidence([rank(STEP, waits=True), late]))
    told = "; worker processes 41, 42 of rank 1 are at data.py:12 (Words.__getitem__)"
    assert found.summary.endswith(told)
    late["children"] = [IDLE]
    assert "at data.py" not in diagnose(evidence([rank(STEP, waits=True), late])).summary


def test_other_processes_are_told_where_they_are_too() -> None:
    late = rank(STEP[:3], stack=frames(20, ("multiprocessing/popen_fork.py", "Popen.wait")))
    late["children"] = [process(41, *READS)]
    found = diagnose(evidence([rank(STEP, waits=True), late]))
    assert found.ranks == (1,)
    assert "child process of rank 1: 41 at data.py:12 (Words.__getitem__)" in found.evidence


def test_all_ranks_may_wait_for_their_loaders_and_none_for_another() -> None:
    loading = rank(STEP, stack=frames(20, *WITH_WORKERS), children=[process(41, *READS)])
    found = diagnose(evidence([loading, loading]))
    assert (found.kind, found.ranks, found.line) == ("data-loader", (0, 1), 20)
    assert found.summary.startswith("no rank waits for another: each waits for its data loader")
    told = "; worker process 41 of rank 0 is at data.py:12 (Words.__getitem__)"
    assert found.summary.endswith(told)
    elsewhere = rank(STEP, stack=frames(30))
    assert diagnose(evidence([loading, elsewhere])).kind == "unknown"
    asked = evidence([loading, loading], because="asked", stalled_s=0.5)
    assert diagnose(asked).kind == "unknown", "as a loader that is a little slow"
