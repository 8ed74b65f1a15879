"""Temporary folders of which `lab gc` can tell whether anybody still uses them.

Their maker holds a lock on each (flock(2)), which goes with the process however it ends.
"""

import fcntl
import os
import shutil
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from types import TracebackType

PREFIX = "multinode-lab-tmp-"
FRESH = 10.0
"""Seconds in which a folder may have been made, and not been locked yet."""


class TemporaryFolder:
    """A folder that goes with `close`, or when the block ends; `path` is where it is."""

    def __init__(self, inside: Path | None = None) -> None:
        """A new one; `inside`: not where temporary folders are."""
        self.path = Path(tempfile.mkdtemp(prefix=PREFIX, dir=inside))
        self._held = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY)
        with suppress(OSError):  # no locks there, so that nobody can ask for them either
            fcntl.flock(self._held, fcntl.LOCK_EX)

    def __enter__(self) -> Path:
        return self.path

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Remove it."""
        shutil.rmtree(self.path, ignore_errors=True)
        os.close(self._held)


def remove_left_folders(dry_run: bool = False, *more: Path) -> list[str]:
    """Remove this user's folders that a killed process has left; one line for each.

    They are looked for where temporary folders are, and in `more`.
    """
    told = []
    places = (Path(tempfile.gettempdir()), *more)
    for path in sorted(path for place in places for path in place.glob(f"{PREFIX}*")):
        with suppress(OSError):  # it has just gone, or somebody holds it
            folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
            try:
                facts = os.fstat(folder)
                if facts.st_uid != os.getuid() or time.time() - facts.st_mtime < FRESH:
                    continue
                fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if not dry_run:
                    shutil.rmtree(path)
                told.append(f"folder {path}: of a lab command that was killed")
            finally:
                os.close(folder)
    return told
