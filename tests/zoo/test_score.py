"""A score is right only if kind, ranks and line are, and nothing else is said."""

from dataclasses import replace
from typing import Any

from lab.diagnose.finding import Finding, Innocent, Kind
from lab.zoo.registry import find_cases
from lab.zoo.report import Report
from lab.zoo.runner import Outcome
from lab.zoo.score import Score

CASE = find_cases(["barrier-on-rank-zero"])[0]
LINE = min(CASE.lines)
WELL: dict[str, Any] = {"kind": "ok", "summary": "2 ranks ended well"}


def found(kind: Kind = "extra-collective", *ranks: int, **changes: Any) -> Finding:
    where = {"file": "train.py", "line": LINE, **changes}
    return Finding(kind, "error", "a sentence", ranks or (0,), ("node0",), **where)


def score(
    *findings: Finding, why: Finding | None = None, healthy: dict[str, Any] | None = None
) -> Score:
    verdict = {
        "kind": "stalled",
        "summary": "no rank went on",
        "why": why and why.to_json(),
        "findings": [finding.to_json() for finding in findings],
    }
    return Score(CASE, Outcome("a", verdict), Outcome("b", WELL if healthy is None else healthy))


def test_all_right() -> None:
    assert score(why=found()).ok
    assert score(why=found()).faults == []


def test_a_rank_that_has_ended_is_where_others_wait() -> None:
    waits = Innocent((1,), "wait in barrier", "train.py", LINE)
    assert score(why=found(file=None, line=None, innocent=(waits,))).ok


def test_each_wrong_thing_is_named() -> None:
    assert "deadlock" in score(why=found("deadlock")).faults[0]
    assert "ranks [1] instead of (0,)" in score(why=found("extra-collective", 1)).faults[0]
    assert f"train.py:{LINE - 1} instead of" in score(why=found(line=LINE - 1)).faults[0]
    assert "no line instead of" in score(why=found(file=None, line=None)).faults[0]
    assert "of-torch.py" in score(why=found(file="of-torch.py")).faults[0]
    assert "was not found: no rank went on" in score().faults[0]


def test_the_most_right_of_several_counts_and_what_does_not_follow_is_named() -> None:
    judged = score(found("extra-collective", 1), found("nan", 0), why=found())
    assert (judged.kind, judged.ranks, judged.line) == (True, True, True)
    assert not judged.ok
    assert judged.faults == ["besides nan: a sentence"]


def test_false_alarms_on_the_twin() -> None:
    well_but = {**WELL, "why": None, "findings": [found("nan").to_json()]}
    assert "healthy twin: nan" in score(why=found(), healthy=well_but).faults[0]
    failed = {"kind": "exit", "summary": "rank 1 exited with code 3"}
    assert "rank 1 exited" in score(why=found(), healthy=failed).faults[0]
    nothing = score(why=found(), healthy={})
    assert "had no verdict" in nothing.faults[0]
    assert not nothing.ok


def test_a_report_says_where_it_was_and_what_cannot_occur_there() -> None:
    (left_out,) = find_cases(["small-shared-memory"])
    report = Report("ssh", [score(why=found())], {"wine ddp ours": []}, [left_out])
    assert report.ok
    assert report.sums == (
        "on ssh: right kind 1 of 1, ranks 1 of 1, line 1 of 1; false alarms 0 in 2 healthy runs"
    )
    again = Score(CASE, replace(score(why=found()).fault, again=True), Outcome("b", WELL))
    assert Report("ssh", [again], {}).sums.endswith("; 1 run again with more patience")
    said = report.to_json()
    assert (said["on"], list(said["left_out"])) == ("ssh", ["small-shared-memory"])
