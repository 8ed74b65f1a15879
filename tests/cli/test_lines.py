"""Lines out of chunks, and what the terminal shows of them."""

from collections.abc import Sequence

import pytest

from lab.cli.console import UPDATE_EVERY, Prefixes, RunConsole
from lab.cli.options import chosen_ranks
from lab.errors import UsageError
from lab.lines import LINE_LIMIT, Lines
from tests.conftest import Lab


def lines_of(chunks: Sequence[str]) -> list[str]:
    lines = Lines()
    return [line for chunk in chunks for line in lines.feed(chunk)] + lines.end()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a\nb", ["a", "b"]),
        ("a\n\nb\n", ["a", "", "b"]),
        ("a\r\nb\r\n", ["a", "b"]),
        ("\r 0%\r 50%\r100%\ndone\n", ["100%", "done"]),
        ("\r 0%\r 50%", [" 50%"]),
        ("50%\r100%\r", ["100%"]),
        ("\r0%\r      \r", ["0%"]),
        ("\router 0%\n\rinner 0%\x1b[A\n\rinner 9%\x1b[A\router 1%\n", ["outer 0%", "outer 1%"]),
    ],
)
def test_lines_whatever_the_chunks(text: str, expected: list[str]) -> None:
    assert lines_of([text]) == expected
    assert [line for line in lines_of(list(text)) if "inner" not in line] == expected


def test_ten_megabytes_without_a_line_break_are_not_held() -> None:
    lines = Lines()
    longest = 0
    total = 0
    for _ in range(160):
        whole = lines.feed("x" * 65_536)
        total += sum(map(len, whole))
        longest = max(longest, *map(len, [lines._pending, *whole]))
    assert total + len("".join(lines.end())) == 160 * 65_536
    assert longest <= 2 * LINE_LIMIT
    for number in range(10_000):
        assert lines.feed(f"\r{number:0100}") == []
    assert len(lines._pending) < 1000


def test_a_progress_bar_is_shown_now_and_then(capsys: pytest.CaptureFixture[str]) -> None:
    now = [0.0]
    console = RunConsole(Prefixes({0: "node0"}), clock=lambda: now[0])
    every = UPDATE_EVERY[False]
    for step in range(4000):
        now[0] = step * every / 1000
        console.log("node0", 0, "err", f"\rstep {step}")
    console.log("node0", 0, "err", "\rstep 4000\n")
    shown = capsys.readouterr().err.splitlines()
    assert shown == [f"[0 node0] step {step}" for step in (1000, 2000, 3000, 4000)]


def test_sets_of_ranks() -> None:
    assert chosen_ranks(None, 4) is None
    assert chosen_ranks(["0,3"], 4) == frozenset({0, 3})
    assert chosen_ranks(["0-2", "3"], 4) == frozenset({0, 1, 2, 3})


@pytest.mark.parametrize("text", ["4", "0-4", "2-1", "x", "-1", "", "1,,2"])
def test_what_is_no_set_of_ranks(text: str) -> None:
    with pytest.raises(UsageError, match="rank"):
        chosen_ranks([text], 4)


def test_progress_bars_and_ranks_of_a_real_run(lab: Lab) -> None:
    script = lab.script(
        "import os, sys\nrank = os.environ['RANK']\n"
        "for i in range(1000):\n    sys.stderr.write(f'\\r{i}/999 of {rank}')\n"
        "sys.stderr.write('\\n')\nsys.stdout.buffer.write(b'caf\\xc3\\xa9 \\xff\\n')"
    )
    done = lab("run", "-t", "quad", "--on", "local", "--rank", "1,3", script)
    errors = [line for line in done.stderr.splitlines() if not line.startswith("lab:")]
    assert sorted(errors) == ["[1 node1] 999/999 of 1", "[3 node3] 999/999 of 3"]
    assert sorted(done.stdout.splitlines()) == [f"[{r} node{r}] café \ufffd" for r in (1, 3)]
    kept = (lab.runs()[0] / "node0" / "rank0.err").read_bytes()
    assert kept.decode() == "".join(f"\r{i}/999 of 0" for i in range(1000)) + "\n"
    again = lab("logs", "--rank", "2-3", env={"PYTHONIOENCODING": "ascii"})
    assert sorted(again.stdout.splitlines()) == [f"[{r} node{r}] caf? ?" for r in (2, 3)]
    assert sorted(again.stderr.splitlines()) == [f"[{r} node{r}] 999/999 of {r}" for r in (2, 3)]


def test_quiet_says_only_the_verdict(lab: Lab) -> None:
    script = lab.script("print('hello')")
    done = lab("run", "-t", "solo", "--on", "local", "--quiet", script)
    assert done.stdout == ""
    assert len(done.stderr.splitlines()) == 1
    assert "1 rank ended well" in done.stderr


def test_the_tail_of_logs(lab: Lab) -> None:
    script = lab.script("for i in range(50_000): print(i)\nprint('end', end='')")
    lab("run", "-t", "solo", "--on", "local", "--quiet", script)
    done = lab("logs", "--tail", "3")
    assert done.stdout == "[0 node0] 49998\n[0 node0] 49999\n[0 node0] end\n"
    assert lab("logs", "--tail", "0").stdout == ""
    assert len(lab("logs").stdout.splitlines()) == 50_001
