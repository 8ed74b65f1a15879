"""`--help`: prose that fits the terminal, with the paragraphs of the docstring."""

import subprocess
import sys
from itertools import pairwise

import pytest

WIDTH = 64


def prose(*verb: str) -> list[str]:
    """The lines between the usage and the first box."""
    done = subprocess.run(
        [sys.executable, "-P", "-m", "lab", *verb, "--help"],
        env={"COLUMNS": str(WIDTH), "PYTHONPATH": ":".join(filter(None, sys.path))},
        capture_output=True,
        text=True,
        check=True,
    )
    lines = [line.strip() for line in done.stdout.splitlines()]
    usage = next(number for number, line in enumerate(lines) if line.startswith("Usage:"))
    usage_end = lines.index("", usage)
    box = next(number for number, line in enumerate(lines) if line.startswith("╭"))
    return lines[usage_end + 1 : box]


@pytest.mark.parametrize("verb", ["run", "prove", "gc"])
def test_lines_break_where_the_terminal_ends(verb: str) -> None:
    lines = prose(verb)
    assert lines
    for line, following in pairwise(lines):
        if line and following:
            assert len(f"{line} {following.split()[0]}") > WIDTH - 2, (line, following)


def test_paragraphs_stay_apart() -> None:
    assert "\n".join(prose("run")).strip().count("\n\n") == 2
