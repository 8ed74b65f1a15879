"""What a rank wrote last, kept for the end of the run."""

import pytest

from lab.runs.last_lines import KEPT, LAST_LINES, WIDTH, LastLines
from tests.conftest import Lab
from tests.runs.test_local_runs import verdict


def kept(*chunks: tuple[str, str]) -> tuple[str, ...]:
    lines = LastLines()
    for stream, text in chunks:
        lines.log(1, stream, text)
    return lines.of(1)


def test_both_streams_in_order_of_arrival() -> None:
    chunks = ("out", "a\nb"), ("err", "c\n"), ("out", "B\nno end"), ("err", "nor here")
    assert kept(*chunks) == ("a", "c", "bB", "no end", "nor here")


def test_stderr_alone_where_a_traceback_is() -> None:
    error = "Traceback (most recent call last):\n  ...\nValueError: x\n"
    assert kept(("out", "a\n"), ("err", error), ("out", "b\n")) == tuple(error.splitlines())


def test_of_another_rank_or_before_a_restart_there_is_nothing() -> None:
    lines = LastLines()
    lines.log(0, "out", "a\n")
    assert (lines.of(0), lines.of(1)) == (("a",), ())
    lines.clear()
    assert lines.of(0) == ()


def test_a_progress_bar_is_its_last_state() -> None:
    assert kept(("err", "\r1%"), ("err", "\r2%"), ("out", "x\n"), ("err", "\r3%")) == ("x", "3%")


def test_bytes_that_are_no_text_are_replaced() -> None:
    assert kept(("out", "a\udcff\n")) == ("a�",)


@pytest.mark.parametrize("size", [50, 1000, 10 * KEPT])
def test_bounded(size: int) -> None:
    text = "".join(f"{number} {'x' * 3000 * (number % 2)}\n" for number in range(10_000))
    lines = LastLines()
    for at in range(0, len(text), size):
        lines.log(1, "out", text[at : at + size])
    found = lines.of(1)
    assert 0 < len(found) <= LAST_LINES
    assert max(map(len, found)) <= WIDTH
    assert [int(line.split()[0]) for line in found] == list(range(10_000 - len(found), 10_000))
    (tail,) = lines._tails.values()
    assert sum(len(text) for _, text in tail._pieces) < 2 * KEPT


def test_a_line_without_end() -> None:
    assert kept(*[("out", "x" * KEPT)] * 9) == ("x" * WIDTH,)
    assert kept(*[("out", "x" * KEPT)] * 9, ("out", "\n")) == ("x" * WIDTH,)


@pytest.mark.parametrize("end", ["os._exit(7)", "os.kill(os.getpid(), 9)"])
def test_a_rank_that_ends_without_a_traceback_has_its_last_words(lab: Lab, end: str) -> None:
    script = lab.script(
        f"import os\nprint('epoch 3: loss 0.1', flush=True)\nos.write(2, b'warning')\n{end}"
    )
    done = lab("run", "-t", "solo", "--on", "local", script)
    *_, stdout, stderr, last = done.stderr.splitlines()
    assert {stdout, stderr} == {"  epoch 3: loss 0.1", "  warning"}
    assert last.startswith("lab: rank 0 on node0: ")
    assert sorted(verdict(lab)["first"]["last_lines"]) == ["epoch 3: loss 0.1", "warning"]
