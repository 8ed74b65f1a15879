"""The report as data and in words."""

import json
import math
import subprocess
import sys
from dataclasses import replace
from typing import Any

import pytest

from lab.prove import Matrix, Recipe, Report, RoundTrip, StepRow
from tests.prove.reports import BITWISE_STEP, GOOD, MEMORY, PLACE, STEP, WIRE


def with_second_step(**changes: Any) -> Report:
    return replace(GOOD, steps=(STEP, replace(STEP, step=2, **changes)))


def bitwise_demanded(*steps: StepRow) -> Report:
    return replace(GOOD, recipe=Recipe(all_reduce="ordered"), steps=steps)


def test_the_verdict_in_words() -> None:
    assert GOOD.ok
    assert GOOD.verdict == (
        "equal to one process: max |difference| of gradients 3.0e-08, of parameters 1.2e-07, of "
        "optimiser states 6.0e-09; demanded: 1e-06 relative (added in another order), on "
        "4 ranks / 4 nodes"
    )


def test_bitwise_is_said_where_it_is_so() -> None:
    same = replace(GOOD, steps=(BITWISE_STEP,))
    assert same.verdict.startswith("bitwise equal to one process: max")
    assert same.to_json()["bitwise"] is True
    assert not replace(same, steps=()).bitwise
    assert not replace(same, steps=(*same.steps, STEP)).bitwise
    differ = replace(same, steps=(replace(BITWISE_STEP, ranks_equal=False),))
    assert not differ.bitwise
    assert differ.verdict.startswith("NOT equal to one process")


@pytest.mark.parametrize(
    "step",
    [
        STEP,
        replace(BITWISE_STEP, ranks_sha256="ab"),
        replace(BITWISE_STEP, relative_difference=1e-9),
        replace(BITWISE_STEP, relative_difference=math.nan),
        replace(BITWISE_STEP, ranks_equal=False),
    ],
)
def test_close_is_not_enough_where_every_bit_is_demanded(step: StepRow) -> None:
    assert bitwise_demanded(BITWISE_STEP).ok
    report = bitwise_demanded(BITWISE_STEP, replace(step, step=2))
    assert not report.ok
    assert report.verdict.startswith("NOT bitwise equal to one process from step 2 on")
    assert "demanded: every bit (sums in rank order)" in report.verdict


@pytest.mark.parametrize(
    ("report", "words"),
    [
        (with_second_step(relative_difference=2e-6), "from step 2 on: max"),
        (with_second_step(relative_difference=math.nan), "from step 2 on: max"),
        (with_second_step(ranks_equal=False), "from step 2 on, and the ranks differ among"),
        (replace(GOOD, batch_difference=2e-3), "on the concatenated batch (difference 2.0e-03)"),
        (replace(GOOD, batch_difference=math.nan), "on the concatenated batch"),
        (replace(GOOD, round_trip=RoundTrip(False, None)), "shards do not come back"),
        (replace(GOOD, round_trip=RoundTrip(True, False)), "shards do not come back"),
        (replace(GOOD, wire=replace(WIRE, measured=[2000] * 4)), "1.33 times the bytes of the"),
        (replace(GOOD, wire=replace(WIRE, measured=[0] * 4)), "0.00 times the bytes of the"),
        (replace(GOOD, wire=replace(WIRE, expected=0)), "bytes on the wire where none"),
        (replace(GOOD, memory=replace(MEMORY, optimizer=[2000] * 3 + [2001])), "holds 4001 bytes"),
        (replace(GOOD, memory=replace(MEMORY, most=4299)), "peak is 4300 bytes, allowed are 4299"),
        (
            replace(GOOD, memory=replace(MEMORY, unsharded=[400, 401], unsharded_most=400)),
            "whole parameters beside the shards take 401 bytes, allowed are 400",
        ),
        (replace(GOOD, steps=()), "without any step"),
    ],
)
def test_anything_beyond_what_is_demanded_fails(report: Report, words: str) -> None:
    assert not report.ok
    assert report.verdict.startswith("NOT equal to one process")
    assert words in report.verdict


def test_what_is_not_ours_or_not_measured_costs_what_it_costs() -> None:
    torchs = replace(WIRE, measured=[2000] * 4, binding=False)
    assert torchs.ratio == pytest.approx(1.333, abs=1e-3)
    assert replace(GOOD, wire=torchs).ok
    assert replace(GOOD, wire=replace(WIRE, measured=None)).ok
    assert replace(GOOD, memory=replace(MEMORY, parameters=[9] * 4, binding=False)).ok


def test_json_there_and_back() -> None:
    assert Report.from_json(json.loads(GOOD.dumps())) == GOOD
    nan = with_second_step(gradient_difference=math.nan)
    assert json.loads(nan.dumps(), parse_constant=pytest.fail)["gradient_difference"] is None
    assert math.isnan(Report.from_json(json.loads(nan.dumps())).gradient_difference)


def test_json_has_what_readers_need() -> None:
    data = json.loads(GOOD.dumps())
    assert (data["schema"], data["ok"], data["verdict"]) == (2, True, GOOD.verdict)
    assert [rank["parameter_sum"] for rank in data["ranks"]] == [2.0] * 4
    assert data["ranks"][0]["gradient_norm"] == 0.5
    assert (data["gradient_difference"], data["optimizer_difference"]) == (3e-8, 6e-9)
    assert data["manual_all_reduce_matches_single_process"]["difference"] == 3e-8
    assert data["fsdp_round_trip"] == {"shards": True, "state_dict": None}
    assert data["wire"]["formula"] == "2 (N-1)/N S"
    assert data["memory"]["optimizer"] == [2000] * 4
    assert (data["topology"], data["world_size"]) == ("quad", 4)
    assert data["recipe"]["parallel"] == "ddp"
    assert data["demanded"]["tolerance"] == 1e-6


def test_another_schema_is_refused() -> None:
    with pytest.raises(ValueError, match="schema 1, expected 2"):
        Report.from_json(GOOD.to_json() | {"schema": 1})


def test_a_matrix_holds_where_all_do() -> None:
    bad = with_second_step(ranks_equal=False)
    torchs = replace(bad, recipe=Recipe(impl="torch", bucket_cap_mb=0))
    assert Matrix((GOOD, GOOD)).verdict == "all 2 proofs hold"
    matrix = Matrix((GOOD, torchs))
    assert not matrix.ok
    assert matrix.verdict == "1 of 2 proofs FAIL: ddp torch bucket_cap_mb=0"
    assert not Matrix(()).ok
    data = json.loads(json.dumps(matrix.to_json(), allow_nan=False))
    assert (data["schema"], data["ok"], data["world_size"]) == (2, False, PLACE.world_size)
    assert Matrix.from_json(data) == matrix


def test_the_controller_reads_reports_without_torch() -> None:
    code = "import sys, lab.prove, lab.cli.prove; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
