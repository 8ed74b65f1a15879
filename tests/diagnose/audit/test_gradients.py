"""What single ranks have seen of their gradients."""

from lab.diagnose.audit import Audit
from lab.diagnose.finding import Finding

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
