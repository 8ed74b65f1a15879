"""Making several things on an engine: all of them or none, whenever Ctrl-C comes."""

import os
import signal
import threading
import time
from collections.abc import Callable
from functools import partial

import pytest

from lab.transport.making import PARALLEL, at_once, whole_or_nothing


def interrupt() -> None:
    os.kill(os.getpid(), signal.SIGINT)


def test_what_came_is_in_order() -> None:
    squares = at_once([partial(pow, number, 2) for number in range(20)])
    assert squares == [number**2 for number in range(20)]
    assert at_once([]) == []


def test_after_a_failure_no_more_are_begun_and_those_that_are_end() -> None:
    begun: list[int] = []
    ended: list[int] = []
    failed = threading.Event()

    def task(number: int) -> None:
        begun.append(number)
        if number == 0:
            failed.set()
            raise ValueError("the first")
        failed.wait(60)
        time.sleep(0.5)
        ended.append(number)

    # Each of those that have begun may take one more before the failure is seen.
    with pytest.raises(ValueError, match="the first"):
        at_once([partial(task, number) for number in range(100)])
    assert sorted(begun) == sorted([0, *ended])
    assert len(begun) < 100


def test_an_interrupt_waits_for_those_that_have_begun() -> None:
    going = threading.Barrier(PARALLEL + 1)
    heard = threading.Event()
    ended: list[int] = []

    def task(number: int) -> None:
        if number < PARALLEL:
            going.wait(60)
        heard.wait(60)
        ended.append(number)

    def check() -> None:
        if not heard.is_set():
            going.wait(60)
            heard.set()
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        at_once([partial(task, number) for number in range(PARALLEL)], check)
    assert sorted(ended) == list(range(PARALLEL))


def test_interrupts_are_heard_where_it_may_end_and_undo_is_not_cut_short() -> None:
    said: list[str] = []

    def make(check: Callable[[], None]) -> None:
        interrupt()
        said.append("goes on")
        check()
        said.append("never")

    def undo() -> None:
        interrupt()
        said.append("undone")

    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            whole_or_nothing(make, undo)
    finally:
        signal.signal(signal.SIGINT, before)
    assert said == ["goes on", "undone"]


def test_an_interrupt_after_the_last_step_undoes_all() -> None:
    undone: list[bool] = []
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            whole_or_nothing(lambda _check: interrupt(), lambda: undone.append(True))
    finally:
        signal.signal(signal.SIGINT, before)
    assert undone == [True]


def test_what_is_made_is_returned() -> None:
    assert whole_or_nothing(lambda _check: 7, pytest.fail) == 7
