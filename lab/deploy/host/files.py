"""Files by the hash of their content: received, copied and looked at. SHA-256 throughout."""

import contextlib
import hashlib
import os
import shutil
import stat
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from lab.deploy.host.wire import CHUNK, Wire

Entry = dict[str, Any]
"""`path`, and for a file `size`, `hash` and `executable`; for a symbolic link `target`."""
WORTH = 4 << 20
"""Bytes from which it may take less time to find out what differs in a file than to send it."""
SAMPLES, BLOCK = 16, 4096
"""How many blocks of a file are compared first, and their bytes."""


def receive_blob(wire: Wire, folder: Path, blob: Entry) -> None:
    """Take a file from the wire into `folder`, under its hash; whole or not at all.

    Raises:
        ValueError: what came is not what was announced.
    """
    partial = folder / "partial"
    digest = hashlib.sha256()
    left = blob["size"]
    try:
        with partial.open("wb") as file:
            while left:
                data = wire.chunk(left)
                digest.update(data)
                file.write(data)
                left -= len(data)
        if digest.hexdigest() != blob["hash"]:
            raise ValueError("it changed while it was sent")
        partial.rename(folder / blob["hash"])
    finally:
        partial.unlink(missing_ok=True)


def older_versions(
    missing: Sequence[Entry], code: Path, known: set[str], folder: Path
) -> dict[str, Any]:
    """Put what an earlier version has in the place of large files under the hashes of the new ones.

    As hard links, which `accept` does not take: rsync makes a file anew, and writes into none.

    Args:
        missing: files whose content is not here.
        code: the earlier version's files.
        known: the paths of those that were put there.
        folder: is made.

    Returns:
        By hash, how large it is there, and digests of a few of its blocks: see `samples`.
    """
    folder.mkdir(mode=0o700)
    found: dict[str, Any] = {}
    real = os.path.realpath(code)
    for entry in missing:
        older, name = code / entry["path"], entry["hash"]
        if entry["size"] < WORTH or name in found or entry["path"] not in known:
            continue
        if os.path.realpath(older) != os.path.join(real, entry["path"]):  # noqa: PTH118 - as text
            continue  # a run has put a link in its way
        with contextlib.suppress(OSError):  # it has gone, or its file system has no such links
            size = older.lstat().st_size
            if size >= WORTH:
                found[name] = {"size": size, "samples": samples(older, size)}
                os.link(older, folder / name, follow_symlinks=False)
    return found


def samples(path: Path, size: int) -> list[str]:
    """Digests of a few blocks of a file's first `size` bytes, evenly spaced.

    Raises:
        OSError: it cannot be read.
    """
    with path.open("rb") as file:
        found = []
        for number in range(SAMPLES):
            file.seek(size // SAMPLES * number)
            found.append(hashlib.sha256(file.read(BLOCK)).hexdigest())
    return found


def accept(folder: Path, blobs: Path) -> None:
    """Take those files of `folder`, which goes, to `blobs` that have become what they shall be."""
    for path in folder.iterdir():
        with contextlib.suppress(OSError):  # nobody may read it
            status = path.lstat()
            if not stat.S_ISREG(status.st_mode) or status.st_nlink > 1:
                continue  # nothing that rsync has made
            with path.open("rb") as file:
                digest = hashlib.file_digest(file, "sha256")
            if digest.hexdigest() == path.name:
                path.rename(blobs / path.name)
    shutil.rmtree(folder)


def place(
    entries: Sequence[Entry], target: Path, copies: Mapping[str, Path], blobs: Path
) -> list[Entry]:
    """Make those of the files below `target` that are not there and whose content is at hand.

    Copies, not hard links: a script may write into one of its files.

    Args:
        entries: what shall be there in the end.
        target: the folder of a new version.
        copies: where an earlier version has a content, by hash; the hash is taken again.
        blobs: where received files are; each is moved from there by the last entry that needs it.

    Returns:
        The entries whose content must be received first.
    """
    files = [entry for entry in entries if "hash" in entry]
    todo = [entry for entry in files if not (target / entry["path"]).exists()]
    uses = Counter(entry["hash"] for entry in todo)
    missing = []
    for entry in todo:
        wanted = entry["hash"]
        path = target / entry["path"]
        path.parent.mkdir(parents=True, exist_ok=True)
        blob = blobs / wanted
        uses[wanted] -= 1
        if blob.exists():
            if uses[wanted]:
                shutil.copyfile(blob, path)
            else:
                blob.rename(path)
        elif wanted not in copies or not _copied(copies[wanted], path, wanted):
            missing.append(entry)
            continue
        path.chmod(0o755 if entry["executable"] else 0o644)
    return missing


def make_links(entries: Sequence[Entry], target: Path) -> None:
    """Make the symbolic links below `target`, after all files: none is written through one."""
    for entry in entries:
        if "target" in entry:
            path = target / entry["path"]
            path.parent.mkdir(parents=True, exist_ok=True)
            path.symlink_to(entry["target"])


def _copied(source: Path, path: Path, wanted: str) -> bool:
    """Whether `source` has that content; it is at `path` now, then."""
    digest = hashlib.sha256()
    try:
        descriptor = os.open(source, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return False
    with os.fdopen(descriptor, "rb") as from_, path.open("wb") as to:
        while data := from_.read(CHUNK):
            digest.update(data)
            to.write(data)
    if digest.hexdigest() == wanted:
        return True
    path.unlink()
    return False


def stamp(path: Path) -> list[int] | None:
    """What changes when somebody writes to a file; None: it is not there."""
    try:
        status = path.lstat()
    except OSError:
        return None
    return [status.st_size, status.st_mtime_ns, status.st_mode]


def keep_unknown(old: Path, known: set[str], new: Path) -> None:
    """Have what runs wrote beside the code in the new version, too: hard links, no copies.

    Args:
        old: the version before.
        known: the paths in it that were put there.
        new: the version to be, with all its own files.
    """
    for root, folders, files in os.walk(old):
        folders[:] = [name for name in folders if name != "__pycache__"]
        here = Path(root)
        links = [name for name in folders if (here / name).is_symlink()]
        for name in files + links:
            source = here / name
            inside = source.relative_to(old)
            there = new / inside
            if str(inside) in known or there.exists() or there.is_symlink():
                continue
            try:
                there.parent.mkdir(parents=True, exist_ok=True)
                os.link(source, there, follow_symlinks=False)
            except (FileExistsError, NotADirectoryError):
                continue  # its folder is a file of the new version
