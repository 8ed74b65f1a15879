"""Where checkpoints are, and files that a crash cannot spoil. Without torch."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from lab.training.checkpoints.folder import sync


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
