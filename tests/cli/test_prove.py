"""`lab prove`: what it prints, writes and ends with."""

import json
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from typer.testing import CliRunner

from lab.cli.main import app
from lab.errors import UsageError
from lab.prove import Matrix, Recipe, Report, RoundTrip
from lab.runs.verdict import Verdict
from tests.conftest import Lab
from tests.prove.reports import GOOD, STEP


def report(steps: int = 3, **last: Any) -> Report:
    rows = [replace(STEP, step=number + 1) for number in range(steps)]
    rows[-1] = replace(rows[-1], **last)
    return replace(GOOD, steps=tuple(rows))


class Outcome:
    """Runs `lab prove` with a worker that is not started but found this."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
        self._patch = monkeypatch
        self._folder = folder

    def __call__(self, found: Report | Matrix | None, exit_code: int, *arguments: str) -> Any:
        def execute(*_: object, **__: object) -> Any:
            if found is not None:
                (self._folder / "prove.json").write_text(found.dumps())
            kind: Any = "ok" if exit_code == 0 else "exit"
            run = SimpleNamespace(path=self._folder)
            return run, Verdict(kind, exit_code, "what came of it")

        self._patch.setattr("lab.batch.execute.execute", execute)
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
    assert max(map(len, lines[:-1])) <= 80
    assert json.loads((tmp_path / "outputs/ddp-demo.json").read_text())["ok"] is True
    recipe = Path(__file__).parents[2] / "docs/recipe.md"
    assert (tmp_path / "outputs/skill-distributed-fsdp-ddp.md").read_text() == recipe.read_text()


def test_unequal_is_shown_written_and_1(outcome: Outcome, tmp_path: Path) -> None:
    bad = report(gradient_difference=2e-6, ranks_equal=False)
    result = outcome(bad, 1, "--out", "a/b.json")
    assert result.exit_code == 1
    assert "NOT equal to one process from step 3 on" in result.stdout
    assert "2.0e-06" in result.stdout
    assert json.loads((tmp_path / "a/b.json").read_text())["ok"] is False


def test_an_unequal_report_is_1_even_where_the_run_says_0(outcome: Outcome) -> None:
    assert outcome(report(relative_difference=float("nan")), 0).exit_code == 1


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


def test_the_costs_of_each_rank_and_by_formula(outcome: Outcome) -> None:
    lines = outcome(replace(report(), round_trip=RoundTrip(True, True)), 0).stdout.splitlines()
    table = lines[lines.index("a step of 0.001 MB of parameters (S), measured:") :]
    assert table[1].split()[:3] == ["rank", "received", "parameters"]
    assert [row.split()[0] for row in table[2:7]] == ["0", "1", "2", "3", "formula"]
    assert table[6].split()[1:] == ["0.002", "MB", "0.004", "MB", "-"]
    assert "whole state saved, loaded into shards: every bit came back" in lines


def test_the_matrix_is_one_table_and_one_verdict(outcome: Outcome, tmp_path: Path) -> None:
    bad = replace(report(ranks_equal=False), recipe=Recipe(parallel="zero1"))
    result = outcome(Matrix((report(), bad)), 1, "--parallel", "all")
    assert result.exit_code == 1
    lines = result.stdout.splitlines()
    row = "ddp 1e-06 3.0e-08 1.2e-07 6.0e-09 1.00 1.00 yes"
    assert lines[2].split() == row.split()
    assert lines[3].split()[-1] == "NO"
    assert lines[-1] == "1 of 2 proofs FAIL: zero1"
    assert max(map(len, lines[:4])) <= 80
    data = json.loads((tmp_path / "outputs/prove-all.json").read_text())
    assert [proof["ok"] for proof in data["proofs"]] == [True, False]
    good = outcome(Matrix((report(),)), 0, "--parallel", "all")
    assert (good.exit_code, good.stdout.splitlines()[-1]) == (0, "all 1 proof hold")


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
        "--accumulate 0",
        "--comm-hook int8",
        "--mean median",
        "--precision float16",
    ],
)
def test_wrong_options_are_usage_errors(outcome: Outcome, arguments: str) -> None:
    assert outcome(report(), 0, *arguments.split()).exit_code == 2


@pytest.mark.parametrize(
    "arguments",
    [
        "--impl torch --all-reduce ordered",
        "--impl torch --comm-hook bf16",
        "--parallel none",
        "--parallel all --impl torch",
        "--parallel all --static-graph",
        "--no-reshard-after-forward",
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


def test_on_real_local_nodes(lab: Lab) -> None:
    options = ("--all-reduce", "ordered", "--bucket-cap-mb", "0.001", "--accumulate", "2")
    done = lab("prove", "--on", "local", "--nodes", "3", "--steps", "3", "--json", *options)
    assert done.returncode == 0, done.stderr
    data = json.loads(done.stdout)
    assert json.loads((lab.cwd / "outputs/ddp-demo.json").read_text()) == data
    assert [rank["node"] for rank in data["ranks"]] == ["node0", "node1", "node2"]
    assert (data["nodes"], data["world_size"], data["topology"]) == (3, 3, "quad")
    assert data["gradient_difference"] == data["optimizer_difference"] == 0.0
    assert data["bitwise"] is data["fsdp_round_trip"]["shards"] is True
    assert data["recipe"]["bucket_cap_mb"] == 0.001
    assert data["wire"]["measured"] is not None or sys.platform != "linux"


@pytest.mark.docker
def test_fsdp_on_four_containers(lab: Lab) -> None:
    try:
        done = lab("prove", "--on", "docker", "--parallel", "fsdp", "--steps", "3", timeout=300)
        assert done.returncode == 0, done.stderr + done.stdout
        assert done.stdout.splitlines()[-1].startswith("bitwise equal to one process")
        assert done.stdout.splitlines()[-1].endswith("on 4 ranks / 4 nodes")
    finally:
        lab("down")


@pytest.mark.docker
@pytest.mark.slow
def test_everything_on_four_containers(lab: Lab) -> None:
    try:
        done = lab("prove", "--on", "docker", "--parallel", "all", "--steps", "3", timeout=300)
        assert done.returncode == 0, done.stderr + done.stdout
        assert done.stdout.splitlines()[-1].startswith("all ")
        data = json.loads((lab.cwd / "outputs/prove-all.json").read_text())
        assert (data["ok"], data["nodes"], data["world_size"]) == (True, 4, 4)
        methods = {(p["recipe"]["impl"], p["recipe"]["parallel"]) for p in data["proofs"]}
        assert methods >= {("ours", "ddp"), ("torch", "fsdp"), ("ours", "zero1")}
        for proof in data["proofs"]:
            assert [rank["node"] for rank in proof["ranks"]] == [f"node{n}" for n in range(4)]
            assert proof["wire"]["measured"]
    finally:
        lab("down")
