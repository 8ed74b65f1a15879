"""Parameters in another order on some ranks."""

from typing import Any

from lab.diagnose.audit import Audit
from lab.diagnose.finding import Finding
from tests.diagnose.audit.records import layout, replica

LINE = {"file": "train.py", "line": 11, "function": "__init__"}
TURNED = {"names": ["b", "a"], "shapes": [[2], [2]], "sites": [LINE]}
STRAIGHT = {**TURNED, "names": ["a", "b"]}


def _judge(layouts: list[dict[str, Any]], gradients: list[tuple[int, int]]) -> list[Finding]:
    """By rank: what is in its layout, and digests of gradients in the optimizer's order."""
    audit = Audit(len(layouts), dict.fromkeys(range(len(layouts)), "node0"))
    found: list[Finding] = []
    for rank, about in enumerate(layouts):
        found += audit.feed(rank, layout(managed=[True, True], group=[0, 1, 2], **about))
    for count in range(1, 4):
        for rank, digests in enumerate(gradients):
            found += audit.feed(rank, replica(count, (1, 2), digests))
    found += audit.close()
    assert audit.broken == []
    return found


def test_gradients_that_go_by_position_are_told_with_both_names() -> None:
    (finding,) = _judge([STRAIGHT, TURNED, STRAIGHT], [(3, 4)] * 3)
    assert (finding.kind, finding.ranks, finding.line) == ("parameter-order-differs", (1,), 11)
    assert finding.summary == (
        "rank 1 has the model's parameters in another order than the others: the first that "
        "differs is number 1, a on ranks 0, 2, b on rank 1"
    )
    assert "sorted(" in (finding.cure or "")


def test_an_optimizer_may_sort_what_its_model_does_not() -> None:
    sorted_of_turned = {**STRAIGHT, "order": ["b", "a"]}
    (finding,) = _judge([STRAIGHT, sorted_of_turned], [(3, 4), (4, 3)])
    assert (finding.kind, finding.ranks) == ("parameter-order-differs", (0, 1))


def test_gradients_that_go_by_name_are_right_in_any_order() -> None:
    assert _judge([STRAIGHT, TURNED], [(3, 4), (4, 3)]) == []
    assert _judge([STRAIGHT, {**TURNED, "order": ["a", "b"]}], [(3, 4), (4, 3)]) == []
