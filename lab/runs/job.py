"""What is to be run: a script or module, its arguments, and where it starts."""

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from lab.errors import UsageError
from lab.topology import Topology


class Job(BaseModel):
    """One command, the same for every rank."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    command: tuple[str, ...] = Field(min_length=1)
    """As after `python`: `script.py ARGS` or `-m MODULE ARGS`."""
    cwd: Path
    """The caller's working directory, which the nodes see too."""
    env: Mapping[str, str] = {}
    """On top of the topology's."""
    cold: bool = False
    """Whether ranks must start from nothing, though the nodes may have a warm process."""

    @classmethod
    def from_command_line(
        cls,
        words: Sequence[str],
        *,
        module: bool,
        topology: Topology,
        cwd: Path,
        cold: bool = False,
    ) -> "Job":
        """The job that the command line names, else the topology's own.

        Raises:
            UsageError: there is nothing to run, or the script is not one.
        """
        if not words:
            if topology.job is None:
                raise UsageError(
                    f"nothing to run: the topology {topology.name} has no job. "
                    "Name a script: lab run SCRIPT [ARGS], or a module: lab run -m MODULE [ARGS]"
                )
            command = (*shlex.split(topology.job.script), *topology.job.args)
        else:
            command = ("-m", *words) if module else tuple(words)
        if command[0] != "-m":
            command = (_script(command[0], cwd), *command[1:])
        return cls(command=command, cwd=cwd, cold=cold)

    def __str__(self) -> str:
        return shlex.join(self.command)

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        return self.model_dump(mode="json")


def _script(name: str, cwd: Path) -> str:
    path = cwd / name
    if path.is_dir():
        if not (path / "__main__.py").is_file():
            raise UsageError(f"{name} is a folder without a __main__.py; name the script in it")
    elif not path.is_file():
        raise UsageError(f"there is no script {name} in {cwd}; name a file, or -m and a module")
    return name
