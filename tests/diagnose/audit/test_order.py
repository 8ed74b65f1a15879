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


def test_what_ddp_is_given_is_compared_before_it_refuses_other_shapes() -> None:
    audit = Audit(3, dict.fromkeys(range(3), "node0"))
    found: list[Finding] = []
    for rank, names in enumerate((["a", "b"], ["b", "a"], ["c"])):  # the last one is by itself
        own = {"names": names, "shapes": [[ord(name), 2] for name in names]}
        wrapped = {"check": "wrapped", "number": 1, "group": [2] if rank == 2 else [0, 1], **own}
        built = [0] * len(names)
        found += audit.feed(rank, {**wrapped, "step": 0, "sites": [LINE], "built": built})
    found += audit.close()
    assert audit.broken == []
    (finding,) = found
    assert (finding.kind, finding.ranks, finding.line) == ("parameter-order-differs", (0, 1), 11)
    assert "a on rank 0, b on rank 1" in finding.summary


def test_an_optimizer_may_sort_what_its_model_does_not() -> None:
    sorted_of_turned = {**STRAIGHT, "order": ["b", "a"]}
    (finding,) = _judge([STRAIGHT, sorted_of_turned], [(3, 4), (4, 3)])
    assert (finding.kind, finding.ranks) == ("parameter-order-differs", (0, 1))


def test_gradients_that_go_by_name_are_right_in_any_order() -> None:
    assert _judge([STRAIGHT, TURNED], [(3, 4), (4, 3)]) == []
    assert _judge([STRAIGHT, {**TURNED, "order": ["a", "b"]}], [(3, 4), (4, 3)]) == []
