"""How questions are put to a run's controller, and answered."""

import time
from pathlib import Path

import pytest

from lab.runs.directory import RunDirectory
from lab.runs.questions import Desk, ask, wait


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    return RunDirectory(tmp_path)


def test_an_older_answer_of_a_clock_that_was_ahead_is_not_taken_for_the_new_one(
    run: RunDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = time.time_ns()
    desk = Desk(run.path)
    monkeypatch.setattr(time, "time_ns", lambda: now + 10**12)
    first = ask(run)
    assert desk.question() == first
    desk.answer(first, {"answer": 1})
    assert wait(run, first) == {"answer": 1}
    monkeypatch.setattr(time, "time_ns", lambda: now)
    second = ask(run)
    third = ask(run)  # before anybody has taken the one before
    assert first < second < third
    assert desk.question() == third
    desk.answer(third, {"answer": 2})
    assert wait(run, second) == {"answer": 2}
