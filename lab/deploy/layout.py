"""Where a deployment is on a host.

====================================  ==============================================================
``~/lab/``                            `ssh.workdir` of the topology, expanded on the host
``envs/<key>/``                       there: a virtual environment for each set of packages
``wheels/``                           packages that have come and are not installed yet
``<project>/``                        one for each folder of a controller
``<project>/lock``                    held while somebody deploys
``<project>/blobs/``                  files that have come, of a deploy that did not end
``<project>/releases/0003-1a2b3c4d/`` a version: its number on this host, the hash of its content
``.../code/``                         the project's files
``.../venv``                          a link to the environment
``.../release.json``                  what was put here; written last, so it is there for whole ones
``<project>/current``                 a link to the version in use; its rename is the switch
====================================  ==============================================================
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
        """The interpreter that has the packages."""
        return f"{self.folder}/venv/bin/python"
