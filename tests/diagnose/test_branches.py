"""What the source says of a call that only some ranks have made."""

from collections.abc import Mapping, Sequence

from lab.diagnose.finding import Finding
from lab.diagnose.why.judge import diagnose
from tests.diagnose.seen import call, evidence, rank

Blocks = Mapping[int, Sequence[tuple[str, int, int]]]
LOOP, IF, ELSE = ("loop", 8, 0), ("condition", 20, 0), ("condition", 20, 1)


def _diagnose(other: int, usual: int, blocks: Blocks, rounds: int = 3) -> Finding:
    """Rank 1 calls from line `other` what the others call, as before, from line `usual`."""
    told = [{"file": "train.py", "line": line, "blocks": each} for line, each in blocks.items()]
    before = [call(seq, line=10) for seq in range(1, rounds + 1)]
    lists = [[*before, call(rounds + 1, line=usual)] for _ in range(3)]
    lists[1][-1] = call(rounds + 1, "barrier", other, shape=())
    return diagnose(evidence([rank(one, waits=True, blocks=told) for one in lists]))


def test_after_a_loop_it_has_done_fewer_rounds() -> None:
    found = _diagnose(21, 10, {10: [LOOP], 21: []})
    assert (found.kind, found.ranks) == ("skipped-collective", (1,))
    assert "skipped all_reduce #4" in found.summary


def test_after_a_loop_and_in_a_condition_it_is_one_of_the_two() -> None:
    for blocks in ({10: [LOOP], 21: [IF]}, {}):
        found = _diagnose(21, 10, blocks)
        assert (found.kind, found.ranks) == ("extra-collective", (1,))
        assert "either it did fewer rounds with that line, or only it makes this call" in (
            found.summary
        )
        assert (found.cure or "").startswith("one of the two")


def test_a_condition_before_the_call_of_the_others_adds_one() -> None:
    found = _diagnose(21, 30, {10: [LOOP], 21: [IF], 30: []})
    assert (found.kind, found.ranks) == ("extra-collective", (1,))
    assert "which ranks 0, 2 did not: they went on" in found.summary


def test_branches_of_one_condition_are_another_call() -> None:
    found = _diagnose(21, 30, {10: [LOOP], 21: [IF], 30: [ELSE]})
    assert found.kind == "mismatched-collective"
