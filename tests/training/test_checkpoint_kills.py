"""A save that is killed at any moment leaves the checkpoints of before, or the new one whole."""

import subprocess
import sys
from pathlib import Path

import pytest


def kills(folder: Path, *ways: str) -> list[int]:
    """How often a save was killed in each way; it fails where what was left is not good."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.training.killed_saves", str(folder), *ways],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        check=False,
        timeout=280,
    )
    assert done.returncode == 0, done.stderr
    return [int(line) for line in done.stdout.split()]


def test_killed_at_every_change_of_names_and_in_writes(tmp_path: Path) -> None:
    new, again, writes = kills(tmp_path, "new", "again", "writes")
    assert min(new, again) > 15
    assert writes == 12


def test_one_of_two_ranks_is_killed(tmp_path: Path) -> None:
    (count,) = kills(tmp_path, "ranks")
    assert count >= 3


@pytest.mark.slow
@pytest.mark.parametrize("way", ["behind", "ranks-everywhere"])
def test_killed_everywhere(tmp_path: Path, way: str) -> None:
    (count,) = kills(tmp_path, way)
    assert count > 15
