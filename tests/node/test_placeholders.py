"""Placeholders in arguments."""

import pytest

from lab.node.placeholders import VARIABLES, fill

ENV = {variable: f"<{name}>" for name, variable in VARIABLES.items()}
ENV |= {"LAB_RUN_DIR": "/runs/{nproc}", "GROUP_WORLD_SIZE": "2"}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("{node_rank}", "<node_rank>"),
        ("--nodes={nnodes}", "--nodes=2"),
        ("{nnodes}{nnodes}", "22"),
        ("{{nnodes}}", "{2}"),
        ("{run_dir}", "/runs/{nproc}"),
        ("{}", "{}"),
        ("{rank}", "{rank}"),
        ("{ nnodes }", "{ nnodes }"),
        ("{nnodes", "{nnodes"),
        ('{"a": {"b": 1}}', '{"a": {"b": 1}}'),
        ("${nnodes}", "$2"),
        ("\\1 \\g<1>", "\\1 \\g<1>"),
        ("", ""),
    ],
)
def test_arguments(text: str, expected: str) -> None:
    assert fill(("train.py", text, "-"), ENV) == ("train.py", expected, "-")


def test_the_first_word_is_no_argument() -> None:
    assert fill(("{nnodes}.py",), ENV) == ("{nnodes}.py",)
