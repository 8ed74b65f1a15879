"""`lab ps` of a folder with many runs, and `lab gc` while it looks around."""

import json

import pytest

from lab.cli.runs import NEWEST
from tests.conftest import Lab


@pytest.fixture
def many(lab: Lab) -> list[str]:
    """More runs than are shown, the oldest first."""
    ids = [f"run-{number:02}" for number in range(NEWEST + 3)]
    for minute, run in enumerate(ids):
        folder = lab.cwd / "runs" / run
        folder.mkdir(parents=True)
        state = {"state": "finished", "created": f"2026-01-01T00:{minute:02}:00+00:00"}
        (folder / "state.json").write_text(json.dumps(state))
    return ids


def test_the_newest_runs_are_shown_and_how_to_see_the_others(lab: Lab, many: list[str]) -> None:
    done = lab("ps")
    assert [run in done.stdout for run in many] == [False] * 3 + [True] * NEWEST
    assert f"the newest {NEWEST} of {len(many)} runs; lab ps --all" in done.stderr


def test_all_runs_are_shown_where_one_asks(lab: Lab, many: list[str]) -> None:
    done = lab("ps", "--all")
    assert all(run in done.stdout for run in many)
    assert "newest" not in done.stderr


def test_programs_get_all_runs(lab: Lab, many: list[str]) -> None:
    done = lab("ps", "--json")
    assert [run["id"] for run in json.loads(done.stdout)["runs"]] == many
    assert "newest" not in done.stderr


def test_gc_says_what_it_is_doing(lab: Lab) -> None:
    done = lab("gc", "--dry-run", "--json")
    assert json.loads(done.stdout)["dry_run"]
    assert "lab: looking for processes and folders of runs that are over" in done.stderr
