"""Threads beside the script's own."""

import _thread
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from lab.rank import threads


def test_it_has_begun_when_the_script_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    start = _thread.start_new_thread
    seen: list[str] = []

    def slowly(work: Callable[[], None], arguments: tuple[Any, ...]) -> int:
        def late() -> None:
            time.sleep(0.2)  # as on a busy machine
            seen.append("begun")
            work()

        return start(late, arguments)

    monkeypatch.setattr(_thread, "start_new_thread", slowly)
    known, ended = threading.enumerate(), _thread.allocate_lock()
    ended.acquire()
    threads.begin(ended.release)
    assert seen == ["begun"]
    assert ended.acquire(timeout=30)
    assert threading.enumerate() == known


def test_the_limit_of_threads_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> int:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(_thread, "start_new_thread", full)
    with pytest.raises(RuntimeError, match="new thread"):
        threads.begin(print)
