"""Control codes of ranks: a terminal shared by several gets colours and nothing else."""

import io

import pytest

from lab.cli.console import UPDATE_EVERY, Prefixes, RunConsole
from lab.cli.output import one_line, printable


class Screen(io.StringIO):
    """A stream that says it is a terminal."""

    def __init__(self, terminal: bool = True) -> None:
        super().__init__()
        self._terminal = terminal

    @property
    def encoding(self) -> str:  # type: ignore[override]  # StringIO has None
        return "utf-8"

    def isatty(self) -> bool:
        return self._terminal


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("a\x1b[2Jb\x1b[Hc\x1b[10;3Hd\x1b[?25le\x1b[Kf", "abcdef"),
        ("a\x1b]0;title\x07b\x1b]2;title\x1b\\c", "abc"),
        ("a\x1b]0;never ended\nnext line", "a\nnext line"),
        ("a\x1bPq#0\x1b\\b\x1b_x\x1b\\c", "abc"),
        ("a\x1bcb\x1b(0c\x1b7d\x1b", "abcd"),
        ("a\x07b\x08c\x00d\x0ce\x9b2Jf\x7fg\rh", "abcde2Jfgh"),
        (
            "\x1b[31mred\x1b[0m \x1b[1;38:2::1:2:3mx\x1b[m",
            "\x1b[31mred\x1b[0m \x1b[1;38:2::1:2:3mx\x1b[m",
        ),
        ("\x1b[31mred\nplain", "\x1b[31mred\x1b[0m\nplain"),
        ("a\tb\n\u00e9\n", "a\tb\n\u00e9\n"),
        ("[0 node0] array[3]; \\x1b", "[0 node0] array[3]; \\x1b"),
    ],
)
def test_a_terminal_gets_colours_alone(text: str, shown: str) -> None:
    assert printable(text, Screen()) == shown
    assert printable(text, Screen(terminal=False)) == text


def test_line_breaks_are_written_out_in_tables() -> None:
    assert one_line("a\nb\x1b[2J\té") == r"a\nb\x1b[2J\té"


@pytest.mark.parametrize("end", ["\n", ""])
def test_a_bar_that_was_shown_at_its_end_is_not_shown_again(
    end: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    screen = Screen()
    monkeypatch.setattr("sys.stderr", screen)
    monkeypatch.setenv("NO_COLOR", "1")
    now = [0.0]
    console = RunConsole(Prefixes({0: "node0"}), clock=lambda: now[0])
    for percent in (0, 50, 100):
        console.log("node0", 0, "err", f"\r{percent}%")
        now[0] += UPDATE_EVERY[True]
    console.log("node0", 0, "err", end)
    console.event({"type": "exit", "node": "node0", "rank": 0})
    assert screen.getvalue().splitlines() == ["[0 node0] 50%", "[0 node0] 100%"]
    console.log("node0", 0, "err", "100%\n")  # a line of its own
    assert screen.getvalue().splitlines()[2:] == ["[0 node0] 100%"]
