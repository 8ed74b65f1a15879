"""Where a deployment is on a host. Paths that start with `~/` are expanded there.

    ~/lab/                                 `ssh.workdir` of the topology
      envs/<hash>/                         packages, one folder for each lock and Python
      wheels/                              wheels that were carried here, while they are needed
      <project>/                           one for each folder of a controller
        lock                               held while somebody deploys here
        blobs/                             files that have come, of a deploy that did not end
        releases/0003-1a2b3c4d5e6f/        a version: its number here, and the hash of its content
          code/                            the files of the project
          lab/lab/                         lab itself
          venv/                            the Python that finds lab and the packages
          release.json                     what was put here: the last file that is written
        current -> releases/0003-...       one rename of this link is the switch to a version
"""

import hashlib
import platform
import re
from dataclasses import dataclass
from pathlib import Path

from lab.topology import Topology


@dataclass(frozen=True)
class Layout:
    """The folders of one project on all hosts of a topology."""

    workdir: str
    """`ssh.workdir`: parent of everything."""
    project: str
    """Name of the project's folder there."""

    @classmethod
    def of(cls, topology: Topology, folder: Path) -> "Layout":
        """The layout for what is deployed from `folder` of this machine.

        Two folders never share one, also where their names are equal or controllers differ.
        """
        here = folder.resolve()
        name = re.sub(r"[^A-Za-z0-9_.-]", "-", here.name).strip("-.") or "project"
        digest = hashlib.sha256(f"{platform.node()}\0{here}".encode("utf-8", "surrogateescape"))
        return cls(topology.ssh.workdir.rstrip("/"), f"{name[:40]}-{digest.hexdigest()[:8]}")

    @property
    def folder(self) -> str:
        """The project's folder."""
        return f"{self.workdir}/{self.project}"

    @property
    def current(self) -> str:
        """The link to the version in use."""
        return f"{self.folder}/current"


@dataclass(frozen=True)
class Release:
    """A version on one host, by absolute paths: they stay while a later deploy switches."""

    folder: str

    @property
    def code(self) -> str:
        """The project's files: where a job starts."""
        return f"{self.folder}/code"

    @property
    def python(self) -> str:
        """An interpreter that finds lab (behind the job's own folder) and the packages."""
        return f"{self.folder}/venv/bin/python"
