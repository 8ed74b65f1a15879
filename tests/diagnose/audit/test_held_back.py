"""Gradients that FSDP2 was told not to reduce."""

from lab.diagnose.audit.audit import Audit

SITE = {"file": "train.py", "line": 7, "function": "main"}


def test_they_are_told_of_once_with_the_line_that_left_the_exchange_out() -> None:
    audit = Audit(2, {0: "node0", 1: "node1"})
    for rank in (0, 1):
        audit.feed(rank, {"check": "held-back", "step": 4, "optimizer": 0, "count": 4, **SITE})
    audit.close()
    (found,) = audit.findings
    assert (found.kind, found.severity, found.ranks) == ("no-sync-at-step", "error", (0, 1))
    assert (found.step, found.file, found.line) == (4, "train.py", 7)
    assert found.summary.startswith("ranks 0, 1 step without gradients that FSDP has not reduced")
