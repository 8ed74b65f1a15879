"""An agent whose controller says nothing any more, though its stdin is open."""

from dataclasses import replace
from pathlib import Path

import pytest

from lab.node.silence import Silence
from tests.node.test_agent import agent, job


def test_ranks_end_when_nothing_is_heard(tmp_path: Path) -> None:
    with agent(replace(job(tmp_path, "import time; time.sleep(600)"), silence=0.5)) as running:
        running.until("hello")
        running.start_ranks()
        said = running.until("bye")
    errors = [message["message"] for message in said if message["type"] == "error"]
    assert errors == ["nothing was heard of the controller for 0.5 s"]
    assert [message["signal"] for message in said if message["type"] == "exit"] == [15]


def test_a_word_now_and_then_is_enough(tmp_path: Path) -> None:
    script = "import time\nfor _ in range(4): print('on', flush=True); time.sleep(0.2)"
    with agent(replace(job(tmp_path, script), silence=60.0)) as running:
        running.until("hello")
        running.start_ranks()
        for _ in range(4):
            running.send(type="alive")
        said = running.until("bye")
    assert [message["code"] for message in said if message["type"] == "exit"] == [0]
    assert not [message for message in said if message["type"] == "error"]


def test_it_counts_from_the_last_word(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr("time.monotonic", lambda: now)
    silence = Silence(10.0)
    now = 109.0
    assert not silence.is_too_long
    silence.broken()
    now = 118.0
    assert (silence.is_too_long, silence.over_at) == (False, 119.0)
    now = 119.0
    assert silence.is_too_long
    silence.forget()
    assert (silence.is_too_long, silence.over_at) == (False, None)
    assert Silence(None).over_at is None
