"""Exceptions, as sentences have them."""

import pytest

from lab.diagnose.words import origin_in_words
from lab.runs.verdict import Failure
from tests.diagnose.seen import Json


def link(kind: str, line: int | None, how: str | None) -> Json:
    file = None if line is None else "train.py"
    return {"kind": kind, "message": "no\nin line 2", "file": file, "line": line, "how": how}


LAST = link("TrainerError", 18, None)


@pytest.mark.parametrize(
    ("before", "told"),
    [
        ([], ""),
        ([link("KeyError", 10, "cause")], ", from KeyError: no at train.py:10"),
        ([link("KeyError", 10, "context")], ", after KeyError: no at train.py:10"),
        ([link("KeyError", 10, "hidden")], ""),
        (
            [link("DataError", 14, "cause"), link("KeyError", 10, "cause")],
            ", from KeyError: no at train.py:10",
        ),
        (
            [link("DataError", 14, "context"), link("KeyError", 10, "cause")],
            ", after KeyError: no at train.py:10",
        ),
        (
            [link("DataError", 14, "cause"), link("KeyError", 10, "hidden")],
            ", from DataError: no at train.py:14",
        ),
        ([link("OSError", None, "cause")], ", from OSError: no"),
        ([link("OSError", None, "context")], ""),  # a library tries one thing after another
    ],
)
def test_the_exception_with_which_it_began_is_told(before: list[Json], told: str) -> None:
    assert origin_in_words([LAST, *before]) == told


def test_a_failure_is_told_with_it() -> None:
    chain = (LAST, link("KeyError", 10, "cause"))
    failure = Failure(
        1,
        "node1",
        "exception",
        1,
        exception="TrainerError",
        message="training failed",
        file="train.py",
        line=18,
        chain=chain,
    )
    assert str(failure) == (
        "rank 1 on node1: TrainerError: training failed (train.py:18), "
        "from KeyError: no at train.py:10"
    )
