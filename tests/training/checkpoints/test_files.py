"""Files that are there whole or not at all."""

import os
from pathlib import Path

import pytest

from lab.training.checkpoints.files import atomic_file, checkpoint_folder


def write(path: Path, text: bytes) -> None:
    with atomic_file(path) as file:
        file.write(text)


def test_the_folder_is_made(tmp_path: Path) -> None:
    path = tmp_path / "new" / "folder" / "model.pt"
    write(path, b"new")
    assert path.read_bytes() == b"new"
    assert [file.name for file in path.parent.iterdir()] == ["model.pt"]


def test_a_crash_while_writing_keeps_the_old_one(tmp_path: Path) -> None:
    path = tmp_path / "model.pt"
    write(path, b"old")

    def half() -> None:
        with atomic_file(path) as file:
            file.write(b"half")
            raise RuntimeError("power cut")

    with pytest.raises(RuntimeError, match="power cut"):
        half()
    assert path.read_bytes() == b"old"
    assert [file.name for file in tmp_path.iterdir()] == ["model.pt"]


def test_the_bytes_are_on_the_disk_before_the_name_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, named = tmp_path / "model.pt", []
    monkeypatch.setattr(os, "fsync", lambda _: named.append(path.exists()))
    write(path, b"new")
    assert named == [False, True], "first the file, then the folder"


def test_the_run_directory_is_preferred(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LAB_RUN_DIR", raising=False)
    assert checkpoint_folder() == Path("checkpoints")
    monkeypatch.setenv("LAB_RUN_DIR", "/elsewhere/runs/1")
    assert checkpoint_folder() == Path("/elsewhere/runs/1/checkpoints")
