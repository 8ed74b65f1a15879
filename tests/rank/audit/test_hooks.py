"""What a check that is broken does to the script: nothing."""

import json
import os
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from lab.rank.audit.hooks import Hooks
from lab.rank.audit.recorder import Recorder
from lab.rank.events import Events


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    ends = os.pipe()
    yield ends
    for end in ends:
        os.close(end)


def broken(pipe: tuple[int, int], recorder: Recorder) -> list[str]:
    """What was recorded as broken, in words."""
    recorder.close()
    lines = os.read(pipe[0], 1 << 16).decode().splitlines()
    records = [json.loads(line)["record"] for line in lines]
    return [record["what"] for record in records if record["check"] == "broken"]


def test_one_that_raises_is_left_out_though_it_is_named_anew_each_time(
    pipe: tuple[int, int],
) -> None:
    recorder = Recorder(Events(pipe[1]))
    hooks = Hooks(recorder)
    calls: list[Any] = []

    class Check:
        def listen(self) -> None:
            calls.append(self)
            raise ValueError("no")

    check = Check()
    for _ in range(3):
        hooks.tell([check.listen])
        hooks.tell([lambda: calls.remove("none")])
    assert len(calls) == 1
    assert len(broken(pipe, recorder)) == 2


def test_what_listens_to_a_wrapped_function_does_not_fail_it(pipe: tuple[int, int]) -> None:
    def listen(*_: Any, **__: Any) -> None:
        raise ValueError("no")

    recorder = Recorder(Events(pipe[1]))
    owner = SimpleNamespace(double=lambda number: 2 * number)
    Hooks(recorder).wrap(owner, "double", before=listen, after=listen)
    assert [owner.double(3), owner.double(4)] == [6, 8]
    (what,) = broken(pipe, recorder)
    assert "listen" in what


def test_all_that_is_left_is_recorded_though_one_of_them_raises(pipe: tuple[int, int]) -> None:
    def gather() -> None:
        raise ValueError("no")

    recorder = Recorder(Events(pipe[1]))
    done: list[bool] = []
    recorder.before_close += [gather, lambda: done.append(True)]
    (what,) = broken(pipe, recorder)
    assert "no" in what
    assert done == [True]
