"""Ranks that wrap a model in DDP, and never step."""

from typing import Any

from lab.diagnose.audit.steppers import Steppers
from lab.diagnose.finding import Finding
from tests.diagnose.audit.records import layout, replica

NAMES = ["weight", "bias"]


def _judge(
    who_steps: dict[int, list[str]], steps: int = 4, ended: tuple[int, ...] = (0, 0), **fields: Any
) -> list[Finding]:
    """`who_steps`: the parameters that each rank's optimizer holds; `ended`: exit codes by rank."""
    judge = Steppers(2)
    for rank in (0, 1):
        judge.feed(rank, {"check": "wrapped", "names": NAMES, "group": [0, 1]})
    for rank, names in who_steps.items():
        judge.feed(rank, layout(names=names, group=[0, 1], managed=[True] * len(names)))
        for count in range(1, steps + 1):
            judge.feed(rank, replica(count, (count, 2), (3, 4), **fields))
    for rank, code in enumerate(ended):
        judge.feed(rank, {"check": "ended", "code": code})
    return judge.close()


def test_a_rank_that_never_steps_is_named() -> None:
    (finding,) = _judge({0: NAMES}, exchanged={"small": 1})
    assert (finding.kind, finding.ranks, finding.line) == ("parameters-differ", (1,), 7)
    assert finding.summary.startswith("only rank 0 steps an optimizer of this model: rank 1 keeps")


def test_ranks_that_step_parts_or_get_new_weights_are_fine() -> None:
    assert _judge({0: NAMES, 1: NAMES}) == []
    assert _judge({0: NAMES[:1], 1: NAMES[1:]}) == []  # each a part, as ZeRO does
    assert _judge({0: NAMES}, exchanged={"from 0": 2}) == []
    assert _judge({0: NAMES}, ended=(0,)) == []  # it hangs before its first step
    assert _judge({0: NAMES}, ended=(0, 1)) == []  # or has failed there
    assert _judge({0: NAMES}, steps=2) == []  # the other may have ended for another reason
