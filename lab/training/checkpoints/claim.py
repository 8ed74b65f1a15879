"""The right to save checkpoints in a folder: one training's, all ranks of it together."""

import os
import shutil
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from errno import ENOTDIR
from functools import partial
from pathlib import Path

from lab.errors import LabError
from lab.training.checkpoints import folder as folders
from lab.training.checkpoints.lock import FolderLock
from lab.training.checkpoints.ranks import Ranks


class Claim:
    """Held from when it is made until `release`."""

    def __init__(self, folder: Path, ranks: Ranks, *, patience: float) -> None:
        """Take it, try whether each rank can write, and remove what a crash has left. A collective.

        Args:
            folder: made if need be.
            ranks: of the training.
            patience: seconds to wait for whoever has it.

        Raises:
            LabError: another training has it, or a rank cannot write there.
        """
        self.folder = folder
        self._lock: FolderLock | None = None
        """On rank 0."""
        trial: Path | None = None
        try:
            trial = folder / ranks.of_first(lambda: self._begin(patience))
            ranks.check_shared(trial)
            ranks.of_each(partial(self._write, trial, ranks.rank))
        except BaseException:
            self.release()
            raise
        finally:
            if trial is not None and ranks.rank == 0:
                shutil.rmtree(trial, ignore_errors=True)

    def release(self) -> None:
        """Let others have it."""
        if self._lock is not None:
            self._lock.release()

    def _begin(self, patience: float) -> str:
        with self._explained(0):
            try:
                self.folder.mkdir(parents=True, exist_ok=True)
            except FileExistsError:
                raise NotADirectoryError(ENOTDIR, os.strerror(ENOTDIR)) from None
            self._lock = FolderLock(self.folder, patience=patience)
            folders.tidy(self.folder)
            return folders.begin(self.folder, 0).name

    def _write(self, trial: Path, rank: int) -> None:
        with self._explained(rank):
            (trial / str(rank)).write_bytes(b"\n")

    @contextmanager
    def _explained(self, rank: int) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise LabError(
                f"rank {rank} on {socket.gethostname()} cannot write checkpoints in {self.folder}: "
                f"{error.strerror or error}. Make room or rights there, or choose another folder"
            ) from error
