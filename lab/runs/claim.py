"""What ranks in containers made, given to root, where root calls.

They never run as root, so what they make belongs to the user that they run as instead.
"""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

UNPRIVILEGED = 1000
"""The uid of ranks in containers where root calls: see docker/node-entrypoint."""


class Claim:
    """What that user has below a folder at the end of a run and had not at its beginning.

    Where root has a folder together with a real user of that uid, only what is new in root's own
    folders is claimed. Descriptors are followed, not paths: whoever may write there could change
    what a path means.
    """

    def __init__(self, folder: Path) -> None:
        """Take note of what is there."""
        self._folder = folder
        self._before: frozenset[str] = frozenset()
        self._before = frozenset(path for path, _, _ in self._entries())

    @classmethod
    def of_run(cls, run: Path) -> "Claim | None":
        """For the run with that directory; None where root does not call.

        In another user's working directory only the run's own is claimed.
        """
        if os.geteuid() != 0:
            return None
        cwd = run.parent.parent
        return cls(cwd if cwd.stat().st_uid == 0 else run)

    def settle(self) -> None:
        """Give what is new to root."""
        for _, name, folder in self._entries():
            with contextlib.suppress(OSError):  # it has gone, or the disk has no owners
                os.chown(name, 0, 0, dir_fd=folder, follow_symlinks=False)

    def _entries(self) -> Iterator[tuple[str, str, int]]:
        """Path, name, and descriptor of the folder, of each in root's folders.

        Goes into a folder after having named it: it may be root's by then.
        """
        with contextlib.suppress(FileNotFoundError):  # the folder itself has gone
            for path, folders, files, descriptor in os.fwalk(self._folder):
                if os.fstat(descriptor).st_uid != 0:
                    folders.clear()
                    continue
                for name in (*folders, *files):
                    entry = os.path.join(path, name)  # noqa: PTH118 - of many; a Path takes its time
                    with contextlib.suppress(OSError):  # it has gone
                        found = os.stat(name, dir_fd=descriptor, follow_symlinks=False)
                        if found.st_uid == UNPRIVILEGED and entry not in self._before:
                            yield entry, name, descriptor
