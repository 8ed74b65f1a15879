"""What single ranks have seen of their gradients."""

from lab.diagnose.audit import Audit
from lab.diagnose.finding import Finding
from tests.diagnose.audit.records import layout

SITE = {"file": "train.py", "line": 7, "function": None}


def test_an_all_reduce_that_nobody_waits_for_is_said_of_all_ranks_at_once() -> None:
    audit = Audit(2, {0: "node0", 1: "node1"})
    found: list[Finding] = []
    for rank, under_way in ((0, 0), (1, 3)):
        record = {"check": "unwaited", "step": 1, "count": 1, "all": 4, "under_way": under_way}
        found += audit.feed(rank, {**record, **SITE})
    found += audit.close()
    assert audit.broken == []
    (finding,) = found
    assert (finding.kind, finding.ranks, finding.line) == ("gradients-not-reduced", (0, 1), 7)
    assert "without waiting for" in finding.summary
    assert "3 of 4 on rank 1" in " ".join(finding.evidence)
    assert "wait()" in (finding.cure or "")


def _stale(places: list[list[int | None]]) -> list[Finding]:
    """Of an optimizer that looked stale after a few steps; `places` without gradient at the end."""
    audit = Audit(2, {0: "node0", 1: "node1"})
    for rank in (0, 1):
        audit.feed(rank, layout())
        audit.feed(rank, {"check": "stale", "step": 4, "optimizer": 0, "count": 4, **SITE})
        end = {"check": "no-gradient", "step": 9, "optimizer": 0, "count": 9, "places": places}
        audit.feed(rank, end)
    found = audit.close()
    assert audit.broken == []
    return found


def test_an_optimizer_that_holds_none_of_what_is_trained_is_named_by_its_line() -> None:
    (finding,) = _stale([[0, None], [1, None]])
    assert (finding.kind, finding.severity) == ("no-gradient", "error")
    assert (finding.ranks, finding.line) == ((0, 1), 7)
    assert finding.summary.startswith("the optimizer made at train.py:7 holds none of")
    assert "it has made 9 steps, and none of its 2 ever had" in finding.summary
    # What got gradients later on was not stale.
    assert [one.severity for one in _stale([[0, None]])] == ["warning"]
