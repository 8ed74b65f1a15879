"""The task of a rank that has failed waits until the others are heard of, and not for long."""

import json
import threading
import time
from pathlib import Path

import pytest

from lab.node import farewell
from lab.node.farewell import hear_others
from lab.node.meeting import write_whole
from lab.node.questions import question, rank_answer

PLACES = {0: "a", 1: "a", 2: "b"}


class Job:
    """The files of its three ranks; rank 0 has failed."""

    def __init__(self, run: Path) -> None:
        self.run = run
        self.told: list[tuple[str, int]] = []
        for rank, node in enumerate("aab"):
            self.event(rank, node, "started")

    def event(self, rank: int, node: str, kind: str) -> None:
        path = self.run / node / f"rank{rank}.events.jsonl"
        path.parent.mkdir(exist_ok=True)
        with path.open("a") as file:
            file.write(json.dumps({"type": kind}, separators=(",", ":")) + "\n")

    def wait(self, *, is_victim: bool = False) -> threading.Thread:
        """The task of rank 0, in a thread."""

        def report(kind: str, *, rank: int, number: int) -> None:
            assert rank == 0
            self.told.append((kind, number))

        asks = (self.run, 0, PLACES, "0-0", report)
        thread = threading.Thread(target=hear_others, args=asks, kwargs={"is_victim": is_victim})
        thread.start()
        while not self.told:
            time.sleep(0.01)
        return thread

    def answer(self, rank: int) -> None:
        number = question(self.run)
        assert ("asked", number) == self.told[-1]
        assert number is not None
        path = rank_answer(self.run, number, rank)
        write_whole(path, {})


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Job:
    monkeypatch.setattr(farewell, "PATIENCE", 60.0)
    monkeypatch.setattr(farewell, "VICTIM_PATIENCE", 60.0)
    return Job(tmp_path)


def test_it_waits_until_each_other_has_answered_or_ended(job: Job) -> None:
    thread = job.wait()
    job.answer(1)
    thread.join(0.5)
    assert thread.is_alive(), "rank 2 has not been heard of"
    job.event(2, "b", "exit")
    thread.join(30)
    assert not thread.is_alive()


def test_a_victim_waits_for_whoever_has_failed_before(job: Job) -> None:
    thread = job.wait(is_victim=True)
    job.answer(1)
    job.answer(2)
    thread.join(0.5)
    assert thread.is_alive(), "none of them has ended"
    job.event(2, "b", "exit")
    thread.join(30)
    assert not thread.is_alive()


def test_who_has_not_begun_is_neither_waited_for_nor_the_cause(job: Job) -> None:
    (job.run / "b/rank2.events.jsonl").unlink()
    thread = job.wait(is_victim=True)
    job.answer(1)
    thread.join(0.5)
    assert thread.is_alive(), "rank 1 has not ended"
    job.event(1, "a", "exit")
    thread.join(30)
    assert not thread.is_alive()


def test_only_one_asks_and_the_others_wait_for_what_it_hears(job: Job) -> None:
    thread = job.wait()
    second = threading.Thread(
        target=hear_others,
        args=(job.run, 1, PLACES, "0-0", job.told.append),
        kwargs={"is_victim": False},
    )
    second.start()
    job.event(1, "a", "exit")
    second.join(0.5)
    assert second.is_alive(), "rank 2 has not been heard of"
    job.answer(2)
    for one in (thread, second):
        one.join(30)
        assert not one.is_alive()
    assert len(job.told) == 1


def test_nobody_is_waited_for_without_end(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(farewell, "PATIENCE", 0.2)
    thread = job.wait()
    thread.join(30)
    assert not thread.is_alive()
