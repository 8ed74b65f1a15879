"""Collectives that the ranks of a group do not agree on."""

from typing import Any

import pytest

from lab.diagnose.audit.collectives import Collectives
from lab.diagnose.finding import Finding

WORLD = (0, 1, 2)


def signature(
    op: str = "all_reduce",
    shape: list[int] | None = None,
    line: int = 10,
    *,
    dtype: str = "float32",
    reduce: str | None = "SUM",
    source: str = "call",
    group: str = "0",
    ranks: tuple[int, ...] = WORLD,
    text: str | None = None,
) -> list[Any]:
    shape = [4, 64] if shape is None else shape
    return [group, ranks, source, op, shape, dtype, reduce, None, "train.py", line, "main", text]


def record(*calls: tuple[list[Any], int, int]) -> dict[str, Any]:
    """Of what was called, under which number, at which step."""
    seen = [(place, number, step) for place, (_, number, step) in enumerate(calls)]
    return {"check": "collectives", "step": 1, "new": [one for one, _, _ in calls], "seen": seen}


def found(*records: dict[str, Any], close: bool = False) -> list[Finding]:
    judge = Collectives(len(records))
    findings = [one for rank, each in enumerate(records) for one in judge.feed(rank, each)]
    return findings + (judge.close() if close else [])


@pytest.mark.parametrize(
    ("theirs", "word"),
    [
        (signature("broadcast"), "broadcast"),
        (signature(shape=[8, 64]), "[8,64]"),
        (signature(dtype="float64"), "float64"),
        (signature(reduce="MAX"), "MAX"),
        (signature(shape=[64, 4]), "[64,4]"),
    ],
)
def test_the_rank_that_calls_another_one_is_named(theirs: list[Any], word: str) -> None:
    usual = record((signature(), 7, 3))
    (finding,) = found(usual, record((theirs, 7, 3)), usual)
    assert finding.ranks == (1,)
    assert (finding.file, finding.line, finding.step) == ("train.py", 10, 3)
    assert word in finding.summary
    assert "#7" in finding.summary
    assert finding.innocent[0].ranks == (0, 2)


def test_of_two_sides_of_one_size_neither_is_named_as_the_wrong_one() -> None:
    """As where a rank is ended before it could tell what it called."""
    judge = Collectives(3)
    for rank, one in ((0, signature(shape=[2], line=14)), (2, signature(line=30))):
        assert judge.feed(rank, record((one, 12, 6))) == []
    (finding,) = judge.close()
    assert (finding.ranks, finding.line, finding.innocent) == ((0, 2), None, ())
    assert "rank 2 calls all_reduce [4,64] float32 at train.py:30" in finding.summary
    assert "where rank 0 calls all_reduce [2] float32 at train.py:14" in finding.summary


def test_other_lines_and_shapes_of_as_many_elements_are_the_same() -> None:
    ours, theirs = signature(shape=[4]), signature(shape=[4, 1], line=99)
    records = [record((one, 1, 1)) for one in (ours, theirs, ours)]
    assert found(*records, close=True) == []


def test_the_same_line_at_another_step_is_a_collective_left_out() -> None:
    usual = record((signature(), 7, 3), (signature(), 8, 4))
    (finding,) = found(usual, record((signature(), 7, 4)), usual, close=True)
    assert finding.ranks == (1,)
    assert "different steps" in finding.summary


def test_different_steps_are_no_fault_where_all_come_to_the_end() -> None:
    usual = record((signature(), 7, 3), (signature(), 8, 4))
    early = record((signature(), 7, 3), (signature(), 8, 3))  # it has joined, and steps no more
    assert found(usual, early, usual, close=True) == []


def test_different_steps_are_where_a_later_difference_began() -> None:
    usual = record((signature(), 7, 3), (signature("barrier"), 8, 3))
    other = record((signature(), 7, 4), (signature(), 8, 5))
    (finding,) = found(usual, other, usual, close=True)
    assert "different steps" in finding.summary
    assert "barrier" in finding.evidence[-1]


def in_lines(*lines: int) -> dict[str, Any]:
    """All-reduces of one shape, all in one step."""
    return record(*((signature(line=line), n, 0) for n, line in enumerate(lines, start=1)))


def test_what_was_left_out_is_named_though_calls_of_its_shape_have_taken_its_place() -> None:
    usual = in_lines(6, 9, 6, 9, 6, 9, 6, 9)
    (finding,) = found(usual, in_lines(6, 9, 6, 9, 6, 6, 6), usual, close=True)
    assert (finding.ranks, finding.line) == ((1,), 6)
    assert "train.py:6 as collective #6" in finding.summary
    assert "at train.py:9" in finding.summary


def test_what_was_left_out_is_not_told_as_another_order() -> None:
    usual = in_lines(6, 9, 6, 9, 6, 9, 6, 9)
    (finding,) = found(usual, in_lines(6, 9, 6, 6, 9, 6, 9, 12), usual, close=True)
    assert (finding.ranks, finding.line) == ((1,), 6)
    assert "other way round" not in finding.summary
    assert finding.evidence[-1] == "calls at train.py:9: 3 by rank 1, 4 by ranks 0, 2"


def test_lines_that_say_the_same_are_lines_of_their_own() -> None:
    def told(*lines: int) -> dict[str, Any]:
        return in_branch(*((line, "all_reduce(t)") for line in lines))

    usual = told(6, 9, 6, 9, 6, 9, 6, 9)
    (finding,) = found(usual, told(6, 9, 6, 6, 9, 6, 9, 12), usual, close=True)
    assert "other way round" not in finding.summary


def test_lines_in_another_order_each_time_are_told_at_the_end() -> None:
    (finding,) = found(in_lines(6, 9, 6, 9), in_lines(9, 6, 9, 6), in_lines(6, 9, 6, 9), close=True)
    assert "the other way round" in finding.summary


def test_branches_with_the_same_call_are_the_same() -> None:
    assert found(in_lines(5, 7, 5, 7, 20), in_lines(6, 8, 6, 8), close=True) == []


def test_two_lines_in_another_order_get_each_others_tensors() -> None:
    loss, accuracy = signature(line=10), signature(line=11)
    usual = record((loss, 5, 1), (accuracy, 6, 1), (loss, 7, 2))
    turned = record((accuracy, 5, 1), (loss, 6, 1), (loss, 7, 2))
    (finding,) = found(usual, turned, usual)
    assert (finding.kind, finding.ranks, finding.line) == ("mismatched-collective", (1,), 11)
    assert "rank 1 calls all_reduce [4,64] float32 at train.py:11 before that" in finding.summary
    # Other lines on one rank (a branch) tell nothing, nor does who is late.
    branch = record((signature(line=20), 5, 1), (signature(line=21), 6, 1), (loss, 7, 2))
    late = record((accuracy, 5, 2), (loss, 6, 2), (loss, 7, 2))
    assert found(usual, branch, usual) == found(usual, late, usual) == []


def in_branch(*calls: tuple[int, str | None]) -> dict[str, Any]:
    """All-reduces of one shape in one step: the line of each, and what it says."""
    told = [signature(line=line, text=text) for line, text in calls]
    return record(*((one, number, 2) for number, one in enumerate(told, start=1)))


def test_branches_that_say_the_same_in_another_order_get_each_others_tensors() -> None:
    first = in_branch((12, "all_reduce(loss)"), (13, "all_reduce(accuracy)"))
    others = in_branch((15, "all_reduce(accuracy)"), (16, "all_reduce(loss)"))
    (finding,) = found(others, first, others, close=True)
    assert (finding.kind, finding.ranks, finding.line) == ("mismatched-collective", (1,), 12)
    assert "the other way round" in finding.summary


@pytest.mark.parametrize("words", ["ab-ab", "ab-cd", "tt-tt"])
def test_branches_are_left_alone_where_their_words_do_not_tell(words: str) -> None:
    """In one order, in words of their own, or in words that say the same of both."""
    one, other = words.split("-")
    first = in_branch(*enumerate(one, start=12))
    second = in_branch(*enumerate(other, start=15))
    assert found(first, second, first, close=True) == []


def test_ranks_that_send_in_turn_are_in_one_order() -> None:
    """`if rank == source: broadcast(ours, source)`, and in a branch of its own `else: ...`."""

    def sent(*lines: int) -> dict[str, Any]:
        calls = [signature("broadcast", line=line, reduce=None) for line in lines]
        for source, call in enumerate(calls):
            call[7] = source
        return record(*((call, n, 0) for n, call in enumerate(calls, start=1)))

    assert found(sent(5, 7), sent(7, 5), close=True) == []


def test_steps_of_what_was_read_later_say_nothing() -> None:
    one = signature(source="recorder")
    assert found(*[record((one, 7, step)) for step in (3, 4, 5)], close=True) == []


def test_one_difference_of_a_group_is_said_once() -> None:
    usual = record((signature(), 7, 3), (signature("barrier"), 8, 3))
    other = record((signature("barrier"), 7, 3), (signature(), 8, 3))
    assert len(found(usual, other, usual, close=True)) == 1


def test_what_a_gone_rank_called_is_compared_with_what_the_recorder_has_of_the_others() -> None:
    usual = record((signature(source="recorder", reduce=None), 7, 3))
    (finding,) = found(usual, record((signature(shape=[9]), 7, 3)), usual, close=True)
    assert finding.ranks == (1,)


def test_groups_are_apart() -> None:
    barrier = signature("barrier", group="5", ranks=(0, 1))
    pair = record((barrier, 1, 1))
    assert found(pair, pair, record((signature(), 1, 1)), close=True) == []
