"""Checkpoints survive crashes and run no code."""

import os
import pickle
from pathlib import Path

import pytest
import torch

from lab.training.checkpoint import (
    atomic_file,
    checkpoint_folder,
    load_checkpoint,
    save_checkpoint,
)


def test_there_and_back(tmp_path: Path) -> None:
    path = tmp_path / "new" / "folder" / "model.pt"
    save_checkpoint({"weight": torch.arange(3.0), "epoch": 4}, path)
    state = load_checkpoint(path)
    assert torch.equal(state["weight"], torch.arange(3.0))
    assert state["epoch"] == 4
    assert [file.name for file in path.parent.iterdir()] == ["model.pt"]


def test_a_crash_while_writing_keeps_the_old_one(tmp_path: Path) -> None:
    path = tmp_path / "model.pt"
    save_checkpoint({"epoch": 1}, path)

    def half() -> None:
        with atomic_file(path) as file:
            file.write(b"half")
            raise RuntimeError("power cut")

    with pytest.raises(RuntimeError, match="power cut"):
        half()
    assert load_checkpoint(path) == {"epoch": 1}
    assert [file.name for file in tmp_path.iterdir()] == ["model.pt"]


def test_the_bytes_are_on_the_disk_before_the_name_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, named = tmp_path / "model.pt", []
    monkeypatch.setattr(os, "fsync", lambda _: named.append(path.exists()))
    save_checkpoint({"epoch": 1}, path)
    assert named == [False, True], "first the file, then the folder"


def test_a_pickle_that_runs_code_is_refused(tmp_path: Path) -> None:
    class Evil:
        def __reduce__(self) -> tuple[object, tuple[str]]:
            return (Path.touch, (str(tmp_path / "owned"),))

    path = tmp_path / "model.pt"
    torch.save({"model": Evil()}, path)
    with pytest.raises(pickle.UnpicklingError):
        load_checkpoint(path)
    assert not (tmp_path / "owned").exists()


def test_the_run_directory_is_preferred(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LAB_RUN_DIR", raising=False)
    assert checkpoint_folder() == Path("checkpoints")
    monkeypatch.setenv("LAB_RUN_DIR", "/elsewhere/runs/1")
    assert checkpoint_folder() == Path("/elsewhere/runs/1/checkpoints")
