"""Temporary folders: they go with their block, and `lab gc` takes those of the killed."""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from lab import temporary
from lab.temporary import TemporaryFolder, remove_left_folders
from tests.conftest import Lab

HOLDER = (
    "from lab.temporary import TemporaryFolder as F\nf = F()\nprint(f.path, flush=True)\ninput()"
)


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where temporary folders are made, for this process and its children."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    monkeypatch.setattr(temporary, "FRESH", 0.0)
    return tmp_path


def test_it_goes_with_its_block(place: Path) -> None:
    with TemporaryFolder() as folder:
        (folder / "file").write_text("")
        assert folder.parent == place
        assert remove_left_folders() == []
    assert list(place.iterdir()) == []


def test_one_of_a_killed_process_is_removed_and_no_other(place: Path) -> None:
    (place / f"{temporary.PREFIX}link").symlink_to(Path.cwd())
    (place / "multinode-lab-warm-0").mkdir()
    others = set(place.iterdir())
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLDER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    with holder:
        assert holder.stdout is not None
        folder = Path(holder.stdout.readline().strip())
        assert remove_left_folders() == []
        holder.kill()
    line = f"folder {folder}: of a lab command that was killed"
    assert remove_left_folders(dry_run=True) == [line]
    assert folder.exists()
    assert remove_left_folders() == [line]
    assert set(place.iterdir()) == others


def test_one_that_was_made_just_now_is_left_alone(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(temporary, "FRESH", 10.0)
    (place / f"{temporary.PREFIX}new").mkdir()
    assert remove_left_folders() == []


def test_gc_names_it(place: Path, lab: Lab) -> None:
    for parent in (place, place / "multinode-lab" / "wheels"):
        folder = parent / f"{temporary.PREFIX}left"
        folder.mkdir(parents=True)
        os.utime(folder, (0, 0))
        done = lab("gc", "--dry-run", env={"XDG_CACHE_HOME": str(place)})
        assert f"would remove folder {folder}: of a lab command that was killed\n" in done.stdout
        assert folder.exists()
