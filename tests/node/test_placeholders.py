"""Placeholders in arguments."""

import pytest

from lab.node.placeholders import NAMES, fill

VALUES = {name: f"<{name}>" for name in NAMES} | {"run_dir": "/runs/{nproc}", "nnodes": 2}


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
    assert fill(("train.py", text, "-"), VALUES) == ("train.py", expected, "-")


def test_the_first_word_is_no_argument() -> None:
    assert fill(("{nnodes}.py",), VALUES) == ("{nnodes}.py",)
