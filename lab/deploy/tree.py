"""What is deployed of a folder: the files that git would know of, and what is odd among them."""

import hashlib
import os
import stat
import subprocess
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

from lab.deploy.host.wire import CHUNK
from lab.errors import LabError, UsageError

JUNK = frozenset(
    [
        ".DS_Store",
        ".git",
        ".hg",
        ".hypothesis",
        ".idea",
        ".ipynb_checkpoints",
        ".mypy_cache",
        ".nox",
        ".pytest_cache",
        ".ruff_cache",
        ".svn",
        ".tox",
        ".venv",
        "__pycache__",
        "node_modules",
        "venv",
    ]
)
"""Left out where no git says what belongs to the project."""
LARGE = 100 << 20
"""Bytes from which a file is worth a warning."""


@dataclass(frozen=True)
class Entry:
    """One file or symbolic link."""

    path: str
    """Below the folder, with slashes; bytes that are no UTF-8 are surrogate escapes."""
    size: int = 0
    hash: str = ""
    """SHA-256 of its content, in hex."""
    executable: bool = False
    target: str | None = None
    """Of a symbolic link: where it points."""

    def as_data(self) -> dict[str, Any]:
        """As the program on the host takes it."""
        if self.target is not None:
            return {"path": self.path, "target": self.target}
        return {
            "path": self.path,
            "size": self.size,
            "hash": self.hash,
            "executable": self.executable,
        }


class Source(NamedTuple):
    """Where a content is that has been announced to a host."""

    path: Path
    size: int
    """Of what has been announced: the file may be longer by now."""


@dataclass(frozen=True)
class Tree:
    """The files of a folder, by path, at one moment."""

    folder: Path
    entries: tuple[Entry, ...]
    warnings: tuple[str, ...] = ()
    """One line each: what is large, what cannot be sent, what points elsewhere."""

    @property
    def size(self) -> int:
        """Bytes of all files."""
        return sum(entry.size for entry in self.entries)

    @cached_property
    def content(self) -> str:
        """Stands for all that is in it: equal trees have equal ones."""
        digest = hashlib.sha256()
        for entry in self.entries:
            kind = entry.target if entry.target is not None else f"{entry.executable}"
            for part in (entry.path, entry.hash, kind):
                digest.update(part.encode("utf-8", "surrogateescape") + b"\0")
        return digest.hexdigest()

    @cached_property
    def sources(self) -> dict[str, Source]:
        """Where each content is, by hash."""
        return {
            entry.hash: Source(
                self.folder / os.fsdecode(entry.path.encode("utf-8", "surrogateescape")), entry.size
            )
            for entry in self.entries
            if entry.target is None
        }


def read_tree(folder: Path) -> Tree:
    """Look at a folder and hash its files.

    In a git working tree these are the tracked files, as they are now, and the untracked ones that
    are not ignored, also of submodules; elsewhere all but what is obviously not the project's
    (`JUNK`). lab's own runs are never among them.

    Raises:
        UsageError: a file cannot be read.
        LabError: git does not say.
    """
    entries: list[Entry] = []
    warnings: list[str] = []
    for path in sorted(set(_names(folder))):
        entry = _entry(folder, path, warnings)
        if entry is not None:
            entries.append(entry)
    return Tree(folder, tuple(entries), tuple(warnings))


def _entry(folder: Path, path: str, warnings: list[str]) -> Entry | None:
    file = folder / path
    name = os.fsencode(path).decode("utf-8", "surrogateescape")
    try:
        status = file.lstat()
        if stat.S_ISLNK(status.st_mode):
            target = os.fsencode(file.readlink()).decode("utf-8", "surrogateescape")
            if _leads_out(path, target):
                warnings.append(
                    f"{shown(path)} points out of the folder, to {shown(target)}: the link is "
                    "sent, not what it points to"
                )
            return Entry(name, target=target)
        if not stat.S_ISREG(status.st_mode):
            warnings.append(f"{shown(path)} is neither file nor link: it is left out")
            return None
        if status.st_size >= LARGE:
            warnings.append(
                f"{shown(path)} has {in_words(status.st_size)}: if it need not be on the hosts, "
                "put it into .gitignore"
            )
        size, digest = _hashed(file, status.st_size)
    except FileNotFoundError:  # tracked but deleted, or gone since we looked
        return None
    except OSError as error:
        raise UsageError(
            f"{shown(path)} cannot be read: {error.strerror}; let yourself read it, or put it into "
            ".gitignore"
        ) from error
    return Entry(name, size, digest, bool(status.st_mode & stat.S_IXUSR))


def _hashed(file: Path, most: int) -> tuple[int, str]:
    """So many of a file's bytes, or as many as it has: how many, and their hash.

    No more of it is looked at: it may be the output of this very command, and grow.
    """
    digest, left = hashlib.sha256(), most
    with file.open("rb") as content:
        while left and (data := content.read(min(left, CHUNK))):
            digest.update(data)
            left -= len(data)
    return most - left, digest.hexdigest()


def _leads_out(path: str, target: str) -> bool:
    place = os.path.normpath(PurePosixPath(path).parent / target)
    return place == ".." or place.startswith(("/", "../"))


def shown(path: str) -> str:
    """A name as a message can show it: on one line, whatever is in it."""
    plain = path.isprintable() and path.strip() == path
    return path if plain else repr(path)


def in_words(size: float) -> str:
    """Bytes as people read them, in powers of ten as disks are sold."""
    for unit in ("bytes", "kB", "MB"):
        if size < 1000:
            return f"{size:.0f} {unit}" if unit == "bytes" else f"{size:.3g} {unit}"
        size /= 1000
    return f"{size:.1f} GB"


def _names(folder: Path) -> Iterator[str]:
    """The paths of what is to be sent, below the folder."""
    names = list(_listed(folder)) if _in_git(folder) else []
    runs = {f"runs/{state.parent.name}/" for state in folder.glob("runs/*/state.json")}
    # Where git has nothing the folder itself may be ignored by a repository around it.
    for path in names or _walk(folder):
        if "/".join(path.split("/", 2)[:2]) + "/" not in runs:
            yield path


def _in_git(folder: Path) -> bool:
    return any((above / ".git").exists() for above in (folder.resolve(), *folder.resolve().parents))


def _listed(folder: Path) -> Iterator[str]:
    """What git lists; a repository inside, such as a submodule, is looked into as well."""
    output = _git(folder, "ls-files", "-z", "--cached", "--others", "--exclude-standard")
    for raw in output.split(b"\0"):
        path = os.fsdecode(raw).rstrip("/")
        if not path:
            continue
        inner = folder / path
        if inner.is_dir() and not inner.is_symlink():
            inside = _listed(inner) if (inner / ".git").exists() else _walk(inner)
            yield from (f"{path}/{name}" for name in inside)
        else:
            yield path


def _git(folder: Path, *arguments: str) -> bytes:
    # Within a git hook these name another repository.
    env = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    try:
        done = subprocess.run(
            ["git", "-C", str(folder), *arguments], capture_output=True, check=False, env=env
        )
    except FileNotFoundError as error:
        raise LabError(
            f"{folder} belongs to git, which is not on PATH: install git, so that what is ignored "
            "there is not sent"
        ) from error
    if done.returncode:
        reason = done.stderr.decode(errors="replace").strip().partition("\n")[0]
        raise LabError(f"git cannot list the files of {folder}: {reason}")
    return done.stdout


def _walk(folder: Path) -> Iterator[str]:
    for root, folders, files in os.walk(folder, onerror=_refuse):
        folders[:] = [name for name in folders if name not in JUNK]
        here = Path(root)
        links: Iterable[str] = [name for name in folders if (here / name).is_symlink()]
        for name in (*files, *links):
            if name not in JUNK and not name.endswith(".pyc"):
                yield str((here / name).relative_to(folder))


def _refuse(error: OSError) -> None:
    raise UsageError(f"{error.filename} cannot be read: {error.strerror}; let yourself read it")
