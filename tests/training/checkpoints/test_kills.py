"""A save that is killed at any moment leaves the checkpoints of before, or the new one whole."""

import subprocess
import sys
from pathlib import Path

import pytest


def ran(module: str, *arguments: object) -> list[str]:
    """The lines that it printed; it fails where what was left is not good."""
    done = subprocess.run(
        [sys.executable, "-m", f"tests.training.{module}", *map(str, arguments)],
        cwd=Path(__file__).parents[3],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def kills(folder: Path, *ways: str) -> list[int]:
    """How often a save was killed in each way."""
    return [int(line) for line in ran("killed_saves", folder, *ways)]


def test_killed_at_every_change_of_names_and_in_writes(tmp_path: Path) -> None:
    new, again, writes = kills(tmp_path, "new", "again", "writes")
    assert min(new, again) > 15
    assert writes == 12


def test_one_of_two_ranks_is_killed(tmp_path: Path) -> None:
    (count,) = kills(tmp_path, "ranks")
    assert count >= 3


def test_a_training_that_is_killed_goes_on_with_every_bit(tmp_path: Path) -> None:
    assert len(ran("killed_trainings", tmp_path, 3)) == 3


@pytest.mark.slow
@pytest.mark.timeout(3000)
def test_a_training_that_is_killed_twenty_times(tmp_path: Path) -> None:
    assert len(ran("killed_trainings", tmp_path, 20)) == 20


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("way", ["behind", "ranks-everywhere"])
def test_killed_everywhere(tmp_path: Path, way: str) -> None:
    (count,) = kills(tmp_path, way)
    assert count > 15
