"""Whom the end of a run is about: who did it, though another rank may have failed first."""

from dataclasses import replace

import pytest

from lab.cli.ending import print_verdict
from lab.diagnose.finding import Finding, Innocent
from lab.runs.verdict import Failure, Verdict

ABORTED = Failure(3, "node3", "signal", 134, last_lines=("what(): 8 vs 4",))
VERDICT = Verdict(
    "signal", 134, str(ABORTED), ABORTED, victims=(0, 2), ended=(1,), hint="nobody has said why"
)
GUILTY = Finding("mismatched-collective", "error", "rank 0 called another", ranks=(0,))


def test_the_summary_is_about_the_guilty_rank_and_the_first_failure_a_consequence() -> None:
    verdict = VERDICT.with_why(GUILTY)
    assert verdict.summary == "rank 0 called another; rank 3 failed as a consequence"
    assert (verdict.first, verdict.exit_code, verdict.hint) == (ABORTED, 134, None)


@pytest.mark.parametrize(
    "why",
    [
        None,
        Finding("failed", "error", "rank 3 was ended by SIGABRT", ranks=(3,)),
        Finding("mismatched-collective", "error", "nothing tells which", ranks=(0, 3)),
        Finding("deadlock", "error", "all of them"),
        Finding("unknown", "error", "nothing tells", ranks=(0,)),
    ],
)
def test_a_first_failure_that_no_other_rank_is_blamed_for_stays_what_it_is_about(
    why: Finding | None,
) -> None:
    verdict = VERDICT.with_why(why)
    assert (verdict.why, verdict.summary, verdict.hint) == (why, VERDICT.summary, VERDICT.hint)


def test_the_last_line_is_about_who_did_it(capsys: pytest.CaptureFixture[str]) -> None:
    print_verdict(VERDICT.with_why(GUILTY))
    assert capsys.readouterr().err.splitlines() == [
        "lab: ranks 2, 3 failed as a consequence; rank 1 ended by lab",
        "lab: the first consequence: rank 3 on node3: ended by SIGABRT (abort)",
        "lab: the last words of rank 3 on node3:",
        "  what(): 8 vs 4",
        "lab: mismatched-collective: rank 0 called another",
        "lab: rank 0 called another; rank 3 failed as a consequence (exit code 134)",
    ]


def test_who_waited_innocently_is_told_of_a_plain_failure_too(
    capsys: pytest.CaptureFixture[str],
) -> None:
    first = Failure(1, "node1", "exit", 3)
    why = Finding("failed", "error", "rank 1 ended with exit code 3", ranks=(1,))
    print_verdict(Verdict("exit", 3, str(first), first).with_why(why))
    end = "lab: rank 1 on node1: exited with code 3 (exit code 3)"
    assert capsys.readouterr().err.splitlines() == [end]
    waits = replace(why, innocent=(Innocent((0, 2), "wait in barrier #4"),))
    print_verdict(Verdict("exit", 3, str(first), first).with_why(waits))
    assert capsys.readouterr().err.splitlines() == [
        "lab: failed: rank 1 ended with exit code 3",
        "  innocent: ranks 0, 2 wait in barrier #4",
        end,
    ]
