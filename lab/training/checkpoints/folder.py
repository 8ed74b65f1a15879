"""A folder of checkpoints: which are there, how one appears whole or not at all. Without torch.

    step-00000100/                      a checkpoint
    .step-00000200.1f0c2a9b.new/        one being written; a crash leaves it
    .step-00000200.1f0c2a9b.old/        the one of before, for the moment in which another of the
                                        same step takes its place
    .training.lock                      see `lock.py`
    .training.job                       see `lab.training.resume`

Renaming is the moment in which a checkpoint begins to be there. What a crash leaves of others is
hidden from everybody, until `tidy` removes it.

Anyone may look at any time. Only who holds the lock may change anything.
"""

import os
import re
import secrets
import shutil
import sys
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import NamedTuple

from lab.errors import LabError
from lab.training.checkpoints.manifest import (
    BadCheckpointError,
    Manifest,
    check_file,
    read_manifest,
)

CHECKPOINT = re.compile(r"step-(?P<step>\d{8,})")
LEFTOVER = re.compile(r"\.(?P<of>step-(?P<step>\d{8,}))\.[0-9a-f]{8}\.(?P<kind>new|old)")


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
        match = CHECKPOINT.fullmatch(self.path.name) or LEFTOVER.fullmatch(self.path.name)
        assert match is not None
        return int(match["step"])


def find(path: Path) -> Found:
    """Look at a checkpoint: at its manifest and its files' sizes, not at what they hold.

    Raises:
        FileNotFoundError: it is not there, any more.
    """
    written = datetime.fromtimestamp(path.stat().st_mtime, UTC)
    try:
        manifest = read_manifest(path)
        for name, entry in manifest.files.items():
            check_file(path, name, entry, read=False)
    except BadCheckpointError as error:
        path.stat()
        return Found(path, None, str(error), written)
    return Found(path, manifest, None, datetime.fromisoformat(manifest.saved))


def find_all(folder: Path) -> list[Found]:
    """All checkpoints of a folder, the last saved first."""
    try:
        paths = {path.name: path for path in folder.iterdir()}
    except (FileNotFoundError, NotADirectoryError):
        return []
    found = []
    for name, path in paths.items():
        left = LEFTOVER.fullmatch(name)
        if CHECKPOINT.fullmatch(name) or (
            left and left["kind"] == "old" and left["of"] not in paths
        ):
            with suppress(FileNotFoundError):  # its training has just removed it
                found.append(find(path))
    return sorted(found, key=lambda one: (one.saved, one.step), reverse=True)


def time_to_save(folder: Path) -> datetime:
    """Now, but later than all that is there: a clock may go backwards."""
    now = datetime.now(UTC)
    last = max((one.saved for one in find_all(folder)), default=now)
    try:
        return now if last < now else last + timedelta(microseconds=1)
    except OverflowError:  # there is no later time
        return last


def begin(folder: Path, step: int) -> Path:
    """A new hidden folder for the files of a checkpoint."""
    path = folder / f".step-{step:08d}.{secrets.token_hex(4)}.new"
    path.mkdir(parents=True)
    return path


def commit(new: Path) -> Path:
    """Let the checkpoint that was written into `begin`'s folder be there. Its path.

    It takes the place of one of the same step; where that is not a good one of ours, such as one of
    a newer lab, that stays beside it. All its files and their names must be on the disk.
    """
    match = LEFTOVER.fullmatch(new.name)
    assert match is not None
    path = new.parent / match["of"]
    old = new.with_suffix(".old")
    if os.path.lexists(path):
        if _is_good(path):
            path.rename(old)
        else:
            aside = path.rename(_free(path))
            print(
                f"lab: {path}, which cannot be used, makes room for the new one: it is {aside} now",
                file=sys.stderr,
                flush=True,
            )
    new.rename(path)
    sync(new.parent)
    if old.exists():
        shutil.rmtree(old)
    return path


def tidy(folder: Path) -> None:
    """Remove what a crash has left, and bring back what it was about to replace."""
    for path in list(folder.iterdir()):
        match = LEFTOVER.fullmatch(path.name)
        if match is None:
            continue
        if match["kind"] == "old" and not os.path.lexists(folder / match["of"]):
            path.rename(folder / match["of"])
        else:
            shutil.rmtree(path)


def set_aside(folder: Path) -> Path | None:
    """Move all checkpoints to a new folder beside, so that none is lost or mixed up; nothing else.

    Returns:
        The new folder; None where there was nothing to move.

    Raises:
        LabError: they cannot be moved.
    """
    folder = folder.resolve()
    found = [path for path in folder.iterdir() if CHECKPOINT.fullmatch(path.name)]
    if not found:
        return None
    beside = _free(folder)
    try:
        beside.mkdir()
        for path in found:
            path.rename(beside / path.name)
    except OSError as error:
        raise LabError(
            f"the checkpoints of an earlier training in {folder} cannot be moved to {beside}: "
            f"{error.strerror}; choose another folder"
        ) from error
    return beside


def rotate(folder: Path, keep: int) -> None:
    """Remove the good ones that are older than the newest `keep`; what is not good is not ours."""
    good = [one.path for one in find_all(folder) if one.problem is None]
    for path in good[keep:]:
        # Hidden first: half removed, it would seem to be a damaged one.
        hidden = folder / f".{path.name}.{secrets.token_hex(4)}.new"
        path.rename(hidden)
        shutil.rmtree(hidden)


def _is_good(path: Path) -> bool:
    with suppress(FileNotFoundError):  # a link to nowhere
        return find(path).problem is None
    return False


def _free(path: Path) -> Path:
    """The name with the first number that nothing has."""
    number = 1
    while os.path.lexists(free := path.with_name(f"{path.name}.{number}")):
        number += 1
    return free


def sync(folder: Path) -> None:
    """Wait until the names in a folder are on the disk."""
    number = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(number)
    finally:
        os.close(number)
