"""What shows of a run that has ended well: ranks that called more or less than others."""

from collections.abc import Sequence

from lab.diagnose.finding import Finding
from lab.diagnose.why import review
from tests.diagnose.seen import Json, call, evidence, rank


def ended(lines: Sequence[int] | None, op: str = "all_reduce") -> Json:
    """A rank that called these, and told so; None: it has not told."""
    calls = [call(n, line=line, op=op) for n, line in enumerate(lines or (), start=1)]
    return rank(calls, ended={"code": 0, "signal": None}, source=None)


def shown(*ranks: Json) -> Finding | None:
    return review(evidence(ranks, because="end"))


LOOP = (6, 9) * 4


def test_a_call_that_was_left_out_is_named_though_all_have_ended_well() -> None:
    finding = shown(ended(LOOP), ended((*LOOP[:4], 6, 6, 9)), ended(LOOP))
    assert finding is not None
    assert (finding.kind, finding.severity) == ("skipped-collective", "warning")
    assert (finding.ranks, finding.line) == ((1,), 6)
    assert "8 on rank 0, 7 on rank 1, 8 on rank 2" in finding.evidence[-1]


def test_where_the_lists_do_not_differ_the_numbers_do() -> None:
    fewer = shown(ended([6] * 5), ended([6] * 4), ended([6] * 5))
    assert fewer is not None
    assert (fewer.kind, fewer.ranks) == ("skipped-collective", (1,))
    assert fewer.summary == "rank 1 called 4 collectives of the default group, and ranks 0, 2 5"
    assert fewer.evidence[0].startswith("#5, which only ranks 0, 2 called: all_reduce [4] float32")
    more = shown(ended([6] * 5), ended([6] * 4), ended([6] * 4))
    assert more is not None
    assert (more.kind, more.ranks, more.line) == ("extra-collective", (0,), 6)
    either = shown(ended([6] * 5), ended([6] * 4))
    assert either is not None
    assert (either.kind, either.ranks) == ("mismatched-collective", (0, 1))


def test_nothing_is_said_where_the_numbers_are_the_same_or_one_has_not_told() -> None:
    assert shown(ended(LOOP), ended([5, 7] * 4)) is None
    assert shown(ended(LOOP), ended(LOOP[::-1], op="broadcast")) is None
    assert shown(ended(LOOP), ended(None)) is None
    assert shown(ended(None), ended(None)) is None
