"""The judge of ranks that gloo has aborted in an all-to-all."""

from collections.abc import Sequence

from lab.diagnose.finding import Finding
from tests.diagnose.seen import Json, call, rank
from tests.diagnose.test_why import aborted, after_abort

FITS = [8, 8, 8, 8]


def told(*exchanges: tuple[Sequence[int], Sequence[int]]) -> Json:
    """A rank that has told what it has sent to each and expected of each, in calls from 1 on."""
    calls = [call(n, "all_to_all", 9) for n in range(1, len(exchanges) + 1)]
    found = [
        {"group": "0", "number": n, "sent": [*sent], "expected": [*expected]}
        for n, (sent, expected) in enumerate(exchanges, 1)
    ]
    return {**rank(calls, waits=True), "exchanges": found}


def judged(*others: Json) -> Finding:
    """Rank 1 was aborted: 16 bytes came where it had room for 8."""
    first, *rest = others
    return after_abort(first, aborted(9, "all_to_all_single"), *rest, came=16, room=8)


def test_the_rank_that_all_pairs_have_in_common_is_named() -> None:
    found = judged(told((FITS, FITS)), told(([4, 16, 8, 8], FITS)), told((FITS, FITS)))
    assert (found.kind, found.ranks, found.line) == ("mismatched-collective", (2,), 9)
    assert found.summary == (
        "the splits of rank 2 (node2, local 0) in all_to_all_single() at train.py:9 (main) do not "
        "fit those of the others: rank 2 sends 16 bytes to rank 1, which expects 8; rank 2 sends 4 "
        "bytes to rank 0, which expects 8"
    )
    assert [one.ranks for one in found.innocent] == [(0, 3)]


def test_the_aborted_rank_is_guilty_where_all_have_sent_it_as_much() -> None:
    more = [8, 16, 8, 8]
    found = judged(*[told((more, FITS))] * 3)
    assert found.ranks == (1,)
    assert "rank 0 sends 16 bytes to rank 1, which expects 8" in found.summary


def test_of_one_pair_both_are_named() -> None:
    found = judged(told((FITS, FITS)), told(([8, 16, 8, 8], FITS)), told((FITS, FITS)))
    assert found.ranks == (1, 2)
    assert "do not fit each other: rank 2 sends 16 bytes to rank 1" in found.summary
    assert found.evidence[0] == "nothing tells which of the two is right"


def test_the_call_is_one_of_the_newest_two_and_the_one_in_which_others_differ() -> None:
    large = [16, 16, 16, 16]
    both = [(large, large), (FITS, FITS)]
    found = judged(told(*both), told((large, large), ([4, 16, 8, 8], FITS)), told(*both))
    assert found.ranks == (2,)
    # What was long ago is over.
    long_ago = [(large, large), (FITS, FITS), (FITS, FITS)]
    assert judged(*[told(*long_ago)] * 3).ranks == ()


def test_nobody_is_named_where_nobody_has_told_or_nothing_fits() -> None:
    nothing = rank([call(1, "all_to_all", 9)], waits=True)
    for others in ([nothing] * 3, [told((FITS, FITS))] * 3):
        found = judged(*others)
        assert (found.kind, found.ranks) == ("mismatched-collective", ())
        assert "which one nothing tells" in found.summary
