"""Texts of others in lines of ours."""

from lab.node.words import LIMIT, shortened
from lab.runs.verdict import Failure


def test_the_middle_goes_where_there_is_too_much() -> None:
    assert shortened("x" * LIMIT) == "x" * LIMIT
    long = "begins" + "x" * 10_000 + "ends"
    short = shortened(long)
    assert len(short) == LIMIT
    assert (short[:6], short[-4:], " ... " in short) == ("begins", "ends", True)


def test_a_verdicts_line_can_be_read_however_long_the_message() -> None:
    failure = Failure(0, "node0", "exception", 1, "ValueError", "x" * 10_000, "train.py", 7)
    assert len(str(failure)) < 400
    assert str(failure).startswith("rank 0 on node0: ValueError: xxx")
    assert str(failure).endswith("xxx (train.py:7)")
    assert failure.message == "x" * 10_000
    lost = Failure(0, "node0", "node-lost", 1, message="y" * 10_000)
    assert len(str(lost)) < 400
