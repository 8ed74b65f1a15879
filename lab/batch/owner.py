"""Whose the jobs of the lab's own cluster are: those of the folder's owner, also if root calls."""

import os
from pathlib import Path

from lab.batch.login import CONTAINER


def give_to_owner(run: Path, login: str | None) -> None:
    """Let the job write into its run directory where root has made it in another user's folder.

    As in `lab.runs.claim` descriptors are followed, not paths, and only root's folders are gone
    through: whoever the folder belongs to could change what a path means.
    """
    owner = run.parent.parent.stat()
    in_container = login is not None and login.startswith(CONTAINER)
    if not in_container or os.geteuid() != 0 or owner.st_uid == 0:
        return
    for _, folders, files, descriptor in os.fwalk(run, topdown=False):
        if os.fstat(descriptor).st_uid == 0:
            ids = owner.st_uid, owner.st_gid
            for name in (*folders, *files):
                os.chown(name, *ids, dir_fd=descriptor, follow_symlinks=False)
            os.fchown(descriptor, *ids)
