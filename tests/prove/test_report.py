"""The report as data and in words."""

import json
import math
import subprocess
import sys
from dataclasses import replace

import pytest

from lab.prove import RankRow, Report, Setting, StepRow

SETTING = Setting(
    topology="quad",
    nodes=4,
    world_size=4,
    torch="2.13.0",
    backend="gloo",
    parallel="ddp",
    impl="ours",
    all_reduce="flat",
    bucket_cap_mb=25.0,
    find_unused_parameters=False,
    static_graph=False,
    optimizer="adam",
    learning_rate=1e-3,
    batch_size=32,
    seed=42,
)
STEP = StepRow(
    step=1,
    epoch=1,
    one_process_loss=1.0,
    ranks_loss=1.0,
    one_process_parameter_sum=2.0,
    ranks_parameter_sum=2.0,
    one_process_sha256="aa",
    ranks_sha256="ab",
    gradient_difference=3e-8,
    parameter_difference=1.2e-7,
    ranks_equal=True,
)
RANK = RankRow(0, "node0", 2.0, 0.5, 3e-8, 1.2e-7)
GOOD = Report(SETTING, (STEP, replace(STEP, step=2)), (RANK,), 3e-8)


def with_second_step(**changes: object) -> Report:
    return replace(GOOD, steps=(STEP, replace(STEP, step=2, **changes)))  # type: ignore[arg-type]  # fields by name


def test_the_verdict_in_words() -> None:
    assert GOOD.ok
    assert GOOD.verdict == (
        "equal to one process: max |difference| of gradients 3.0e-08, of parameters 1.2e-07, "
        "tolerance 1e-06, on 4 ranks / 4 nodes"
    )


def test_bitwise_is_said_where_it_is_so() -> None:
    same = replace(GOOD, steps=(replace(STEP, ranks_sha256="aa"),))
    assert same.verdict.startswith("bitwise equal to one process: max")
    assert same.to_json()["bitwise"] is True
    assert not replace(same, steps=()).bitwise
    assert not replace(same, steps=(*same.steps, STEP)).bitwise
    differ = replace(same, steps=(replace(same.steps[0], ranks_equal=False),))
    assert not differ.bitwise
    assert differ.verdict.startswith("NOT equal to one process")


@pytest.mark.parametrize(
    ("report", "words"),
    [
        (with_second_step(gradient_difference=2e-6), "from step 2 on: max"),
        (with_second_step(parameter_difference=2e-6), "from step 2 on: max"),
        (with_second_step(ranks_loss=1.00001), "from step 2 on: max"),
        (with_second_step(gradient_difference=math.nan), "of gradients nan"),
        (with_second_step(ranks_loss=math.nan), "from step 2 on: max"),
        (with_second_step(ranks_equal=False), "from step 2 on, and the ranks differ among"),
        (replace(GOOD, batch_difference=2e-3), "on the concatenated batch (difference 2.0e-03)"),
        (replace(GOOD, batch_difference=math.nan), "on the concatenated batch"),
    ],
)
def test_anything_beyond_tolerance_fails(report: Report, words: str) -> None:
    assert not report.ok
    assert report.verdict.startswith("NOT equal to one process")
    assert words in report.verdict


def test_no_steps_prove_nothing() -> None:
    assert not replace(GOOD, steps=()).ok


def test_json_there_and_back() -> None:
    assert Report.from_json(json.loads(GOOD.dumps())) == GOOD


def test_json_has_what_readers_need() -> None:
    data = json.loads(GOOD.dumps())
    assert (data["schema"], data["ok"], data["verdict"]) == (1, True, GOOD.verdict)
    assert data["ranks"][0]["gradient_norm"] == 0.5
    assert data["manual_all_reduce_matches_single_process"]["difference"] == 3e-8


def test_another_schema_is_refused() -> None:
    with pytest.raises(ValueError, match="schema 2, expected 1"):
        Report.from_json(GOOD.to_json() | {"schema": 2})


def test_the_controller_reads_reports_without_torch() -> None:
    code = "import sys, lab.prove, lab.cli.prove; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
