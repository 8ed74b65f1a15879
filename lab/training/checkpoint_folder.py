"""A folder of checkpoints: which are there, how one appears whole or not at all. Without torch.

    step-00000100/                      a checkpoint
    .step-00000200.1f0c2a9b.new/        one being written; a crash leaves it
    .step-00000200.1f0c2a9b.old/        the one of before, for the moment in which another of the
                                        same step takes its place

Renaming is the moment in which a checkpoint begins to be there. Whatever else a crash leaves is
hidden from everybody, and `tidy` removes it.
"""

import os
import re
import secrets
import shutil
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import NamedTuple

from lab.training.checkpoint_manifest import (
    BadCheckpointError,
    Manifest,
    check_file,
    read_manifest,
)

CHECKPOINT = re.compile(r"step-(\d{8,})")
LEFTOVER = re.compile(r"\.(step-\d{8,})\.[0-9a-f]{8}\.(new|old)")


class Found(NamedTuple):
    """A checkpoint, good or not."""

    path: Path
    manifest: Manifest | None
    problem: str | None
    """Why it cannot be used; None where it seems good."""
    saved: datetime
    """When."""

    @property
    def step(self) -> int:
        """As its name says."""
        match = CHECKPOINT.fullmatch(self.path.name)
        assert match is not None
        return int(match[1])


def find(path: Path) -> Found:
    """Look at a checkpoint: at its manifest and its files' sizes, not at what they hold."""
    try:
        manifest = read_manifest(path)
        for name, entry in manifest.files.items():
            check_file(path, name, entry, read=False)
    except BadCheckpointError as error:
        written = datetime.fromtimestamp(path.stat().st_mtime, UTC)
        return Found(path, None, str(error), written)
    return Found(path, manifest, None, datetime.fromisoformat(manifest.saved))


def find_all(folder: Path) -> list[Found]:
    """All checkpoints of a folder, the last saved first."""
    if not folder.is_dir():
        return []
    found = [find(path) for path in folder.iterdir() if CHECKPOINT.fullmatch(path.name)]
    return sorted(found, key=lambda one: (one.saved, one.step), reverse=True)


def time_to_save(folder: Path) -> datetime:
    """Now, but later than all that is there: a clock may go backwards."""
    now = datetime.now(UTC)
    last = max((one.saved for one in find_all(folder)), default=now)
    return now if last < now else last + timedelta(microseconds=1)


def begin(folder: Path, step: int) -> Path:
    """A new hidden folder for the files of a checkpoint."""
    path = folder / f".step-{step:08d}.{secrets.token_hex(4)}.new"
    path.mkdir(parents=True)
    return path


def commit(new: Path) -> Path:
    """Let the checkpoint that was written into `begin`'s folder be there. Its path.

    All its files and their names must be on the disk.
    """
    match = LEFTOVER.fullmatch(new.name)
    assert match is not None
    path = new.parent / match[1]
    old = new.with_suffix(".old")
    if path.exists():
        path.rename(old)
    new.rename(path)
    sync(new.parent)
    if old.exists():
        shutil.rmtree(old)
    return path


def tidy(folder: Path) -> None:
    """Remove what a crash has left, and bring back what it was about to replace."""
    if not folder.is_dir():
        return
    for path in folder.iterdir():
        match = LEFTOVER.fullmatch(path.name)
        if match is None:
            continue
        if match[2] == "old" and not (folder / match[1]).exists():
            path.rename(folder / match[1])
        else:
            shutil.rmtree(path)


def rotate(folder: Path, keep: int) -> None:
    """Remove the good ones that are older than the newest `keep`; what is not good is not ours."""
    good = [one.path for one in find_all(folder) if one.problem is None]
    for path in good[keep:]:
        # Hidden first: half removed, it would seem to be a damaged one.
        hidden = folder / f".{path.name}.{secrets.token_hex(4)}.new"
        path.rename(hidden)
        shutil.rmtree(hidden)


def sync(folder: Path) -> None:
    """Wait until the names in a folder are on the disk."""
    number = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(number)
    finally:
        os.close(number)
