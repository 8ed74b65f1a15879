"""Which callers of a helper's line tell its calls apart."""

from lab.diagnose.finding import Finding
from lab.diagnose.why.judge import diagnose
from tests.diagnose.seen import Json, call, evidence, rank

TRAIN, VALIDATE = ("train", 20), ("validate", 30)


def _helper(seq: int, *callers: tuple[str, int]) -> Json:
    return call(seq, line=5, callers=callers)


def _rounds(*callers: tuple[str, int], end: tuple[str, int] = ("<module>", 50)) -> list[Json]:
    calls = [_helper(seq, one, end) for seq, one in enumerate(callers, 1)]
    return [*calls, call(len(calls) + 1, "barrier", 40, shape=())]


def _diagnose(*ranks: list[Json]) -> Finding:
    return diagnose(evidence([rank(calls, waits=True) for calls in ranks]))


def test_the_call_of_one_caller_was_skipped() -> None:
    usual = _rounds(TRAIN, VALIDATE, TRAIN, VALIDATE, TRAIN, VALIDATE)
    skips = _rounds(TRAIN, VALIDATE, TRAIN, TRAIN, VALIDATE)
    found = _diagnose(usual, skips, usual, usual)
    assert (found.kind, found.ranks) == ("skipped-collective", (1,))
    assert "skipped all_reduce #4" in found.summary
    assert "at train.py:5 (main), called at train.py:30 (validate), and went" in found.summary
    assert "up to #3 the ranks' collectives of the default group are the same" in found.evidence


def test_a_caller_that_is_always_the_same_is_not_told_of() -> None:
    usual = _rounds(TRAIN, TRAIN, TRAIN)
    found = _diagnose(usual, _rounds(TRAIN, TRAIN), usual)
    assert "(train)" not in found.summary


def test_a_rank_may_come_by_a_line_of_its_own() -> None:
    usual = _rounds(TRAIN, VALIDATE, TRAIN, VALIDATE)
    first = _rounds(TRAIN, VALIDATE, TRAIN, VALIDATE, end=("<module>", 60))
    assert _diagnose(first, usual, usual).kind == "unknown"
    skips = _rounds(TRAIN, VALIDATE, TRAIN, end=("<module>", 60))
    found = _diagnose(skips, usual, usual)
    assert found.ranks == (0,)
    assert "<module>" not in found.summary


def test_older_evidence_has_no_callers() -> None:
    usual, skips = _rounds(TRAIN, VALIDATE, TRAIN), _rounds(TRAIN, VALIDATE)
    for one in (*usual, *skips):
        del one["callers"]
    assert _diagnose(usual, skips, usual).ranks == (1,)
