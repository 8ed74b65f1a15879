"""Checkpoints that a crash cannot spoil, and that loading cannot turn into running code."""

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import torch

from lab.training.checkpoint_folder import sync


def checkpoint_folder() -> Path:
    """`checkpoints` in the run's directory where lab started this, else in the current folder."""
    return Path(os.environ.get("LAB_RUN_DIR") or ".") / "checkpoints"


@contextmanager
def atomic_file(path: Path) -> Iterator[BinaryIO]:
    """A file to write that becomes `path` when the block ends well, and vanishes when it does not.

    A reader or a crash sees the old file or the new one, whole. The folder is made if need be.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
    sync(path.parent)  # the new name is on the disk when its folder is


def save_checkpoint(state: Mapping[str, Any], path: Path) -> None:
    """Write a checkpoint atomically.

    Call it on one rank only: the replicas are equal, and ranks that write one file spoil it.

    Args:
        state: tensors, numbers, strings and containers of them, as `load_checkpoint` reads.
        path: its folder is made if need be.

    Raises:
        OSError: it could not be written; what was there before still is.
    """
    with atomic_file(path) as file:
        torch.save(dict(state), file)


def load_checkpoint(path: Path, device: torch.device | str = "cpu") -> dict[str, Any]:
    """Read a checkpoint; a pickle that would run code is refused.

    Raises:
        pickle.UnpicklingError: the file holds anything but plain data.
        RuntimeError: the file is cut off.
    """
    state: dict[str, Any] = torch.load(path, map_location=device, weights_only=True)
    return state
