"""The versions of one project on this host; the layout is in `lab.deploy.layout`."""

import contextlib
import fcntl
import json
import os
import secrets
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from lab.deploy.host.files import Entry, keep_unknown, stamp

FORMAT = 1
"""Of release.json: another one is of another version of lab, and no version to us."""
KEPT = 3
"""Versions that stay: the one in use and those before it."""
ROLLED_BACK = "rolled-back"


class Project:
    """A project's folder, made if need be."""

    def __init__(self, workdir: str, name: str) -> None:
        self.workdir = Path(workdir).expanduser()
        self.folder = self.workdir / name
        self.blobs = self.folder / "blobs"
        self._releases = self.folder / "releases"

    def make(self) -> str:
        """Make the folders; what names this folder for good, by whatever host it is looked at."""
        for folder in (self.folder, self.blobs, self._releases):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        identity = self.folder / "identity"
        if not identity.exists():
            new = self.folder / f"identity.{secrets.token_hex(8)}"
            new.write_text(secrets.token_hex(16))
            with contextlib.suppress(FileExistsError):
                os.link(new, identity)
            new.unlink()
        return identity.read_text()

    @contextmanager
    def lock(self, wait: bool) -> Iterator[bool]:
        """Hold the project while something is changed; False: somebody else holds it."""
        with (self.folder / "lock").open("w") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
            except BlockingIOError:
                yield False
            else:
                yield True

    @property
    def current(self) -> Path | None:
        """The version in use."""
        link = self.folder / "current"
        try:
            release = self.folder / link.readlink()
        except OSError:
            return None
        return release if self._is_whole(release) else None

    def describe(self) -> dict[str, Any] | None:
        """The version in use, and whether it is as it was put there."""
        release = self.current
        if release is None:
            return None
        written = self.read(release)
        return {
            "release": str(release),
            "content": written["content"],
            "environment": written["environment"],
            "requirements": written["requirements"],
            "intact": (release / "code").is_dir()
            and all(
                stamp(release / "code" / path) == as_put
                for path, as_put in written["stamps"].items()
            ),
            "rolled_back": self._rolled_back() == release.name,
        }

    @staticmethod
    def read(release: Path) -> dict[str, Any]:
        """What was put there."""
        written: dict[str, Any] = json.loads((release / "release.json").read_text())
        return written

    def contents(self) -> dict[str, Path]:
        """Where the version in use has which content, by hash."""
        release = self.current
        if release is None:
            return {}
        entries = self.read(release)["entries"]
        code = release / "code"
        return {entry["hash"]: code / entry["path"] for entry in entries if "hash" in entry}

    def begin(self, content: str) -> Path:
        """A new folder for a version, under the name that it will keep."""
        self._remove_unfinished()
        numbers = [int(path.name.partition("-")[0]) for path in self._all()]
        release = self._releases / f"{max(numbers, default=0) + 1:04}-{content[:12]}"
        (release / "code").mkdir(parents=True)  # ranks start there, also where it stays empty
        return release

    def finish(
        self, release: Path, content: str, environment: dict[str, Any], entries: Sequence[Entry]
    ) -> None:
        """Write down what is in a version whose files are all there: now it may be used."""
        code, before = release / "code", self.current
        if before is not None:
            known = {entry["path"] for entry in self.read(before)["entries"]}
            keep_unknown(before / "code", known, code)
        written = {
            "format": FORMAT,
            "content": content,
            "environment": environment["key"],
            "requirements": environment["requirements"],
            "before": before.name if before else None,
            "entries": entries,
            "stamps": {entry["path"]: stamp(code / entry["path"]) for entry in entries},
        }
        new = release / "release.new"
        new.write_text(json.dumps(written))
        new.rename(release / "release.json")

    def switch(self, release: Path) -> None:
        """Use this version from now on; older ones go, but for the last few."""
        self._point(release)
        (self.folder / ROLLED_BACK).unlink(missing_ok=True)
        shutil.rmtree(self.blobs, ignore_errors=True)
        self.blobs.mkdir(mode=0o700, exist_ok=True)
        kept = [release]
        while len(kept) < KEPT and (before := self.before(kept[-1])) is not None:
            kept.append(before)
        for path in self._all():
            if path not in kept and not _is_used(path):
                shutil.rmtree(path, ignore_errors=True)

    def before(self, release: Path) -> Path | None:
        """The version that a version has replaced, if it is still there."""
        name = self.read(release)["before"]
        before = self._releases / str(name)
        return before if self._is_whole(before) else None

    def roll_back(self, release: Path) -> None:
        """Use an older version again."""
        self._point(release)
        (self.folder / ROLLED_BACK).write_text(release.name)

    def _point(self, release: Path) -> None:
        new = self.folder / "current.new"
        new.unlink(missing_ok=True)
        new.symlink_to(release.relative_to(self.folder))
        new.rename(self.folder / "current")

    def _is_whole(self, release: Path) -> bool:
        """Whether all was put there, in a way that this version of lab understands."""
        with contextlib.suppress(OSError, ValueError):
            return bool(self.read(release).get("format") == FORMAT)
        return False

    def _rolled_back(self) -> str | None:
        try:
            return (self.folder / ROLLED_BACK).read_text()
        except OSError:
            return None

    def _all(self) -> list[Path]:
        return [path for path in self._releases.iterdir() if path.name[:1].isdigit()]

    def _remove_unfinished(self) -> None:
        """What a deploy left that did not end."""
        (self.blobs / "partial").unlink(missing_ok=True)
        for path in self._all():
            if not self._is_whole(path) and not _is_used(path):
                shutil.rmtree(path)


def _is_used(release: Path) -> bool:
    """Whether a process has its working directory there (Linux; elsewhere not known)."""
    for process in Path("/proc").glob("[0-9]*/cwd"):
        with contextlib.suppress(OSError):  # it has ended, or is somebody else's
            if process.readlink().is_relative_to(release):
                return True
    return False
