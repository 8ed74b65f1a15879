"""The cases are what they say: scripts of a user's, with one fault, known by its line."""

import ast
from typing import get_args

import pytest
from pydantic import ValidationError

from lab.diagnose.finding import AUDIT_KINDS, WHY_KINDS
from lab.errors import UsageError
from lab.topology import Place
from lab.zoo.case import Case, Twin
from lab.zoo.registry import all_cases, find_cases

TWINS: tuple[Twin, ...] = ("fault", "healthy")


def cases() -> list[object]:
    return [pytest.param(case, id=case.name) for case in all_cases()]


def test_there_are_enough() -> None:
    assert len(all_cases()) >= 30


def test_kinds_of_both_questions_are_expected() -> None:
    kinds = {case.expect.kind for case in all_cases()}
    # What needs two GPUs, the loss of a node or no fault at all is not reproduced here.
    left_out = {"shared-gpu", "dead", "slow", "unknown"}
    assert (WHY_KINDS | AUDIT_KINDS) - kinds <= left_out


@pytest.mark.parametrize("case", cases())
def test_scripts_are_small_and_know_nothing_of_lab(case: Case) -> None:
    for twin in TWINS:
        text = case.script(twin)
        assert 8 <= len(text.splitlines()) <= 60
        assert "<- fault" not in text
        imported = {
            name.split(".")[0]
            for node in ast.walk(ast.parse(text))
            if isinstance(node, ast.Import | ast.ImportFrom)
            for name in (
                [alias.name for alias in node.names]
                if isinstance(node, ast.Import)
                else [node.module or ""]
            )
        }
        assert "torch" in imported
        assert "lab" not in imported


@pytest.mark.parametrize("case", cases())
def test_a_twin_differs_in_its_fault_alone(case: Case) -> None:
    if case.cut:
        assert not (case.folder / "fault.py").exists(), "it would never be run"
        return
    changed = [line for line in case.difference.splitlines()[2:] if line[:1] in ("+", "-")]
    assert 1 <= len(changed) <= 10


@pytest.mark.parametrize("case", cases())
def test_guilty_ranks_exist(case: Case) -> None:
    size = case.nodes * case.slots
    assert 2 <= size <= 8
    if case.expect.ranks != "any":
        assert set(case.expect.ranks) <= set(range(size))


def test_marks_give_lines_and_are_not_run() -> None:
    case = find_cases(["wrong-world-size"])[0]
    script = case.script("fault").splitlines()
    first = min(case.lines)
    assert script[first - 1].strip() == "dist.init_process_group("
    assert "".join(script[line - 1] for line in sorted(case.lines)).endswith(")")


def test_a_case_that_cannot_occur_everywhere_says_why() -> None:
    (case,) = find_cases(["small-shared-memory"])
    with pytest.raises(ValidationError, match="elsewhere"):
        Case.model_validate({**case.model_dump(), "elsewhere": None})
    with pytest.raises(ValidationError, match="elsewhere"):
        Case.model_validate({**case.model_dump(), "where": get_args(Place)})


def test_a_name_that_is_nearly_right_is_proposed() -> None:
    with pytest.raises(UsageError, match="did you mean no-set-epoch"):
        find_cases(["no-set-epochs"])
