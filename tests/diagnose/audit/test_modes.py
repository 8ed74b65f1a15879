"""Modules that one rank trains in evaluation mode."""

from collections.abc import Sequence
from typing import Any

from lab.diagnose.audit.modes import Modes
from lab.diagnose.finding import Finding

STEP = {"file": "train.py", "line": 9, "function": None}
EVAL = {"file": "train.py", "line": 20, "function": "validate"}
NAMES = (("norm", "BatchNorm1d"), ("drop", "Dropout"))
TRAIN, ALL_EVAL, FROZEN = (True, True), (False, False), (False, True)


def _judge(
    *steps: Sequence[tuple[bool, bool]], weights: Sequence[int] = (1, 1, 1)
) -> list[Finding]:
    """By step and rank: whether the two modules train."""
    ranks = len(steps[0])
    judge = Modes(ranks)
    told: set[tuple[int, int]] = set()
    found: list[Finding] = []
    states = [TRAIN, ALL_EVAL, FROZEN]
    for step, modes in enumerate(steps, start=1):
        for rank, mode in enumerate(modes):
            new: dict[str, Any] | None = None
            state = states.index(mode)
            if (rank, state) not in told:
                told.add((rank, state))
                modules = [[*name, trains] for name, trains in zip(NAMES, mode, strict=True)]
                new = {"modules": modules, "evaluated": None if mode == TRAIN else EVAL}
            record = {
                "check": "modes",
                "step": step,
                "number": 0,
                "count": step,
                "weights": weights[rank],
            }
            found += judge.feed(rank, {**record, "state": state, "new": new, **STEP})
    return found + judge.close()


def test_a_rank_that_goes_on_in_evaluation_mode_is_named_with_its_modules() -> None:
    both = [(TRAIN, TRAIN)] * 3
    (finding,) = _judge(*both, *[(ALL_EVAL, TRAIN)] * 4)
    assert (finding.kind, finding.ranks, finding.step) == ("training-mode-differs", (0,), 4)
    assert finding.line == 20
    assert finding.summary == (
        "rank 0 trains with norm (BatchNorm1d) and 1 other in evaluation mode since step 4; on "
        "rank 1 in training mode"
    )
    assert "train()" in (finding.cure or "")


def test_from_the_start_the_one_that_is_unlike_the_others_is_named() -> None:
    (finding,) = _judge(*[(TRAIN, TRAIN, ALL_EVAL)] * 2)
    assert (finding.ranks, finding.step) == ((2,), 1)
    (finding,) = _judge(*[(ALL_EVAL, TRAIN)] * 2)
    assert finding.ranks == (0,)


def test_a_frozen_part_that_one_rank_trains_again() -> None:
    (finding,) = _judge(*[(FROZEN, FROZEN)] * 2, *[(TRAIN, FROZEN)] * 3)
    assert (finding.ranks, finding.step, finding.line) == ((0,), 3, 9)
    assert finding.summary.startswith("rank 0 trains with norm (BatchNorm1d) in training mode")


def test_what_is_frozen_on_all_ranks_or_of_models_of_their_own_is_no_fault() -> None:
    assert _judge(*[(FROZEN, FROZEN)] * 5) == []
    assert _judge(*[(ALL_EVAL, ALL_EVAL)] * 5) == []
    assert _judge(*[(FROZEN, TRAIN)] * 5, weights=(1, 2)) == []
