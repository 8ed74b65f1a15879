"""What the terminal shows of a finding."""

import os
import pty
from io import StringIO

import pytest

from lab.cli.findings import lines_of, print_finding
from lab.diagnose.finding import Finding, Innocent

FINDING = Finding(
    "busy-alone",
    "error",
    "rank 0 (node0, local 0) is 1 collective behind",
    ranks=(0,),
    innocent=(Innocent((1, 2, 3), "wait in barrier #4", "train.py", 88, "main"),),
    evidence=("rank 0 is at train.py:12",),
    cure="share the work",
)


def test_the_sentence_comes_first_then_who_waits_then_what_was_seen_then_the_cure() -> None:
    file = StringIO()
    print_finding(FINDING, file)
    assert file.getvalue().splitlines() == [
        "lab: busy-alone: rank 0 (node0, local 0) is 1 collective behind",
        "  innocent: ranks 1-3 wait in barrier #4 at train.py:88",
        "  - rank 0 is at train.py:12",
        "  cure: share the work",
    ]


def test_a_warning_says_so_without_colours() -> None:
    assert lines_of(Finding("slow", "warning", "?")) == ["lab: warning: slow: ?"]


def test_the_time_since_when_ranks_wait_is_that_of_the_day() -> None:
    waits = Innocent((1,), "waits in barrier #4", since=1_700_000_000.9)
    shown = lines_of(Finding("unknown", "warning", "?", innocent=(waits,)))
    assert shown[1].startswith("  innocent: rank 1 waits in barrier #4 since ")
    assert shown[1].endswith(":20")  # 22:13:20 in UTC; zones move hours and minutes


@pytest.mark.parametrize(("no_color", "coloured"), [(None, True), ("1", False)])
def test_only_a_terminal_gets_colours_and_none_with_no_color(
    monkeypatch: pytest.MonkeyPatch, no_color: str | None, coloured: bool
) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    if no_color:
        monkeypatch.setenv("NO_COLOR", no_color)
    ours, theirs = pty.openpty()
    try:
        with os.fdopen(theirs, "w") as terminal:
            print_finding(Finding("dead", "error", "node1 is gone"), terminal)
            text = os.read(ours, 4096).decode()
    finally:
        os.close(ours)
    assert "lab: dead:" in text
    assert ("\033[31m" in text) is coloured


def test_what_a_script_said_cannot_add_lines() -> None:
    told = Finding("failed", "error", "rank 0 raised ValueError: a\nlab: all is well")
    assert lines_of(told) == [r"lab: failed: rank 0 raised ValueError: a\nlab: all is well"]
