"""Checkpoints that a crash cannot spoil, and that loading cannot turn into running code."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch


def checkpoint_folder() -> Path:
    """`checkpoints` in the run's directory where lab started this, else in the current folder."""
    return Path(os.environ.get("LAB_RUN_DIR") or ".") / "checkpoints"


def save_checkpoint(state: Mapping[str, Any], path: Path) -> None:
    """Write a checkpoint so that at any moment `path` holds the old one or the new one, whole.

    Call it on one rank only: the replicas are equal, and ranks that write one file spoil it.

    Args:
        state: tensors, numbers, strings and containers of them, as `load_checkpoint` reads.
        path: its folder is made if need be.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("wb") as file:
            torch.save(dict(state), file)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
    # The new name is only on the disk when its folder is.
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def load_checkpoint(path: Path, device: torch.device | str = "cpu") -> dict[str, Any]:
    """Read a checkpoint; a pickle that would run code is refused.

    Raises:
        pickle.UnpicklingError: the file holds anything but plain data.
        RuntimeError: the file is cut off.
    """
    state: dict[str, Any] = torch.load(path, map_location=device, weights_only=True)
    return state
