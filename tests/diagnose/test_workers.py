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
