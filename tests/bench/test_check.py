"""The measurement of `lab check`: that it measures; never how fast."""

import sys

import pytest

from lab.bench import check
from lab.errors import LabError


def test_a_row_for_each_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(check, "SIZES", (3, 5))
    rows = check.bench_check(2, print)
    assert [row["nodes"] for row in rows] == [0, 3, 5, 3, 5]
    for row in rows:
        assert len(row["all seconds"]) == 2
        assert 0 < row["min"] <= row["seconds"] <= row["max"]
        assert 1 < row["min MiB"] <= row["peak MiB"] <= row["max MiB"] < 10_000


def test_a_command_that_fails_is_no_measurement(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(check, "SIZES", (0,))
    with pytest.raises(LabError, match=r"check .* failed: lab: error: .*must be"):
        check.bench_check(1, print)


def test_a_command_that_does_nothing_is_no_measurement(monkeypatch: pytest.MonkeyPatch) -> None:
    """Exit code 0 is not enough: a module that is only imported ends with it too."""
    monkeypatch.setattr(check, "SIZES", (3,))
    monkeypatch.setattr(check, "LAB", (sys.executable, "-c", "pass"))
    with pytest.raises(LabError, match="did not print 'Usage: lab' but: nothing"):
        check.bench_check(1, print)
