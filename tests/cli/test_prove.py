"""`lab prove`: what it prints, writes and ends with."""

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from typer.testing import CliRunner

from lab.cli import prove as module
from lab.cli.main import app
from lab.errors import UsageError
from lab.prove import RankRow, Report, Setting, StepRow
from lab.runs import Verdict
from tests.conftest import Lab

SETTING = Setting(
    "pair", 2, 2, "2.13.0", "gloo", "ddp", "ours", "flat", 25.0, False, False, "adam", 1e-3, 32, 42
)
STEP = StepRow(1, 1, 1.25, 1.25, 2.5, 2.5, "aa", "ab", 3e-8, 1.2e-7, True)
RANKS = tuple(RankRow(rank, f"node{rank}", 2.5, 0.5, 3e-8, 1.2e-7) for rank in range(2))


def report(steps: int = 3, **last: Any) -> Report:
    rows = [replace(STEP, step=number + 1) for number in range(steps)]
    rows[-1] = replace(rows[-1], **last)
    return Report(SETTING, tuple(rows), RANKS, 3e-8)


class Outcome:
    """Runs `lab prove` with a worker that is not started but found this."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
        self._patch = monkeypatch
        self._folder = folder

    def __call__(self, found: Report | None, exit_code: int, *arguments: str) -> Any:
        def execute(*_: object, **__: object) -> Any:
            if found is not None:
                (self._folder / "prove.json").write_text(found.dumps())
            kind: Any = "ok" if exit_code == 0 else "exit"
            run = SimpleNamespace(directory=SimpleNamespace(path=self._folder))
            return run, Verdict(kind, exit_code, "what came of it")

        self._patch.setattr(module, "execute", execute)
        return CliRunner().invoke(app, ["prove", "-t", "pair", "--on", "local", *arguments])


@pytest.fixture
def outcome(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Outcome:
    monkeypatch.chdir(tmp_path)
    run = tmp_path / "run"
    run.mkdir()
    return Outcome(monkeypatch, run)


def test_equal_ends_with_the_verdict_and_0(outcome: Outcome, tmp_path: Path) -> None:
    result = outcome(report(), 0)
    assert result.exit_code == 0
    lines = result.stdout.splitlines()
    assert lines[-1].startswith("equal to one process: max |difference| of gradients 3.0e-08")
    assert max(map(len, lines[:-2])) <= 80
    assert json.loads((tmp_path / "outputs/ddp-demo.json").read_text())["ok"] is True


def test_unequal_is_shown_written_and_1(outcome: Outcome, tmp_path: Path) -> None:
    result = outcome(report(gradient_difference=2e-6, ranks_equal=False), 1, "--out", "a/b.json")
    assert result.exit_code == 1
    assert "NOT equal to one process from step 3 on" in result.stdout
    assert "2.0e-06" in result.stdout
    assert json.loads((tmp_path / "a/b.json").read_text())["ok"] is False


def test_an_unequal_report_is_1_even_where_the_run_says_0(outcome: Outcome) -> None:
    assert outcome(report(parameter_difference=float("nan")), 0).exit_code == 1


@pytest.mark.parametrize(("code", "expected"), [(3, 3), (0, 1)])
def test_no_report_is_never_a_proof(outcome: Outcome, code: int, expected: int) -> None:
    assert outcome(None, code).exit_code == expected


@pytest.mark.parametrize("code", [1, 137])
def test_a_failed_run_is_no_proof_whatever_the_report_says(outcome: Outcome, code: int) -> None:
    result = outcome(report(), code)
    assert result.exit_code == code
    assert "equal" not in result.stdout


def test_many_steps_are_bounded(outcome: Outcome) -> None:
    lines = outcome(report(steps=1000), 0).stdout.splitlines()
    numbers = [line.split()[0] for line in lines if line[:4].strip().isdigit()]
    assert numbers[:10] == [str(number) for number in range(1, 11)]
    assert numbers[10:20] == [str(number) for number in range(991, 1001)]


def test_json_is_one_document(outcome: Outcome) -> None:
    data = json.loads(outcome(report(), 0, "--json").stdout)
    assert data["ranks"][1]["node"] == "node1"


@pytest.mark.parametrize(
    "arguments",
    [
        "--steps 0",
        "--impl theirs",
        "--optimizer x",
        "--parallel tensor",
        "--bucket-cap-mb -1",
    ],
)
def test_wrong_options_are_usage_errors(outcome: Outcome, arguments: str) -> None:
    assert outcome(report(), 0, *arguments.split()).exit_code == 2


@pytest.mark.parametrize(
    "arguments",
    [
        "--impl torch --all-reduce ordered",
        "--impl minimal --static-graph",
        "--impl minimal --parallel zero1",
        "--impl minimal --bucket-cap-mb 1",
    ],
)
def test_options_that_an_implementation_has_not_are_refused(
    outcome: Outcome, arguments: str
) -> None:
    error = outcome(report(), 0, *arguments.split()).exception
    assert isinstance(error, UsageError)
    assert "--impl" in str(error)


def test_on_real_local_nodes(lab: Lab) -> None:
    options = ("--parallel", "ddp", "--all-reduce", "ordered", "--bucket-cap-mb", "0.001")
    done = lab("prove", "--on", "local", "--nodes", "2", "--steps", "3", "--json", *options)
    assert done.returncode == 0, done.stderr
    data = json.loads(done.stdout)
    assert json.loads((lab.cwd / "outputs/ddp-demo.json").read_text()) == data
    assert [rank["node"] for rank in data["ranks"]] == ["node0", "node1"]
    assert (data["nodes"], data["world_size"], data["topology"]) == (2, 2, "quad")
    assert data["gradient_difference"] == 0.0
    assert (data["bitwise"], data["all_reduce"], data["bucket_cap_mb"]) == (True, "ordered", 0.001)
