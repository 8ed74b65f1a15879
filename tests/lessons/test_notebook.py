"""The notebook on real ranks: what holds must hold on all of them."""

import json
from math import nan
from typing import Any

import pytest
import torch

from lab.lessons import Finding, Report
from lab.lessons.notebook import Notebook, perform
from lab.training.world import join_world
from tests.ranks import RankPool


def findings(name: str) -> list[tuple[str, str, bool | None]]:
    """On a rank: do that exercise."""
    with join_world() as world:
        report = perform(EXERCISES[name], world)
    return [(finding.measured, finding.theory, finding.holds) for finding in report.findings]


def equal(notebook: Notebook) -> None:
    notebook.expect("one", 1, 1)
    notebook.expect("the rank", notebook.world.rank, 0)
    notebook.expect("never", "cat", "dog")


def bounds(notebook: Notebook) -> None:
    notebook.expect_at_most("rank", notebook.world.rank, 1)
    notebook.expect_at_most("rank", float(notebook.world.rank), 0.5)
    notebook.expect_at_most("not a number on rank 1", nan if notebook.world.rank else 0.0, 1.0)


def shown(notebook: Notebook) -> None:
    notebook.show("a time", 0.123456, "about 1")
    times = notebook.seconds({"a": lambda: None, "b": lambda: None}, 2)
    notebook.expect("names of what was timed", sorted(times), ["a", "b"])
    notebook.expect("times alike on all ranks", len(set(notebook.gather(times["a"]))), 1)


def drawn(notebook: Notebook) -> None:
    notebook.show("random", torch.rand(()).item(), "the same each time")


EXERCISES = {"equal": equal, "bounds": bounds, "shown": shown, "drawn": drawn}


def test_equalities_hold_on_all_ranks_or_not_at_all(ranks: RankPool) -> None:
    everybodys = ranks.run(2, findings, "equal")
    assert everybodys[0] == [
        ("1", "1", True),
        ("0 on rank 0, but not so on 1", "0", False),
        ("cat", "dog", False),
    ]
    assert [[holds for *_, holds in found] for found in everybodys] == [[True, False, False]] * 2


def test_bounds_are_judged_by_the_worst_rank_and_nan_is_above_any(ranks: RankPool) -> None:
    found = ranks.run(2, findings, "bounds")[0]
    assert found[0] == ("1", "at most 1", True)
    assert found[1][0].startswith("1 on rank 0, but not so on 1")
    assert [holds for *_, holds in found] == [True, False, False]


def test_what_is_shown_is_not_judged(ranks: RankPool) -> None:
    found = ranks.run(2, findings, "shown")[0]
    assert found == [
        ("0.1235", "about 1", None),
        ("['a', 'b']", "['a', 'b']", True),
        ("1", "1", True),
    ]


def test_every_exercise_draws_the_same_random_numbers(ranks: RankPool) -> None:
    assert ranks.run(1, findings, "drawn") == ranks.run(1, findings, "drawn")


def test_a_table_is_aligned_and_printed_by_rank_0(capsys: pytest.CaptureFixture[str]) -> None:
    with join_world(group_of_one=True) as world:
        Notebook(world).table(("name", "ms"), [("short", 1), ("a long one", 123.45678)])
    lines = capsys.readouterr().out.splitlines()
    assert lines == ["name           ms", "short           1", "a long one  123.5"]


def test_a_report_survives_json() -> None:
    findings = (Finding("a", "1", "1", True), Finding("b", "2", "3", False))
    report = Report(2, "gloo", "2.13", 0.5, (*findings, Finding("c", "4 ms", "about 4", None)))
    data: dict[str, Any] = json.loads(json.dumps(report.to_json()))
    assert Report.from_json(data) == report
    assert data["ok"] is False
    assert report.failed == [findings[1]]
    assert report.judged == 2
    assert str(findings[1]) == "FAILS  b: 2 (theory: 3)"
