"""What is to be run: a script, module or executable, its arguments, and where it starts."""

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, cast, get_args

from pydantic import BaseModel, ConfigDict, Field

from lab.errors import UsageError
from lab.runs.script import check_executable, check_script
from lab.runs.variables import redacted
from lab.topology import Topology

Engine = Literal["spawn", "torchrun"]


class Job(BaseModel):
    """One command, the same for every rank."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    command: tuple[str, ...] = Field(min_length=1)
    """As after `python`: `script.py ARGS` or `-m MODULE ARGS`; as it is where not `python`.

    The arguments may hold the placeholders of `lab.node.placeholders`."""
    cwd: Path
    """The caller's working directory, which the nodes see too; `runs/` is in it."""
    start: Path | None = None
    """Where the ranks start, unless in `cwd`."""
    python: bool = True
    """Whether the command is for Python; else its first word is the executable."""
    env: Mapping[str, str] = {}
    """On top of the topology's."""
    requirements: Path | None = None
    """A requirements file of packages that the ranks need on top of the nodes' own."""
    cold: bool = False
    """Whether ranks must start from nothing, though the nodes may have a warm process."""
    engine: Engine = "spawn"
    """What starts the ranks on a node: its agent, or PyTorch's own, torchrun."""
    min_nodes: int | None = None
    """Of torchrun: how many nodes are enough to go on without the others; None: all, always."""

    @property
    def start_folder(self) -> Path:
        """The working directory of the ranks."""
        return self.start or self.cwd

    def spare_nodes(self, topology: Topology) -> int:
        """How many nodes may be lost."""
        return 0 if self.min_nodes is None else topology.nnodes - self.min_nodes

    @classmethod
    def from_command_line(
        cls,
        words: Sequence[str],
        *,
        module: bool = False,
        python: bool = True,
        topology: Topology,
        cwd: Path,
        start: Path | None = None,
        env: Mapping[str, str] | None = None,
        requirements: Path | None = None,
        cold: bool = False,
        engine: str = "spawn",
        min_nodes: int | None = None,
    ) -> "Job":
        """The job that the command line names, else the topology's own.

        Raises:
            UsageError: there is nothing to run, or it cannot be run.
        """
        if module and not python:
            raise UsageError("-m is for Python's modules; leave it out, or leave --no-python out")
        check_engine(engine, min_nodes, topology)
        folder = _start_folder(start, cwd, topology)
        if not words:
            if not python or module:
                flag = "-m needs a module" if module else "--no-python needs an executable"
                raise UsageError(f"{flag}: put it last, with its arguments")
            if topology.job is None:
                raise UsageError(
                    f"nothing to run: the topology {topology.name} has no job. "
                    "Name a script: lab run SCRIPT [ARGS], or a module: lab run -m MODULE [ARGS]"
                )
            command = topology.job.argv
        else:
            command = ("-m", *words) if module else tuple(words)
        if not command[0]:
            raise UsageError("the script's name is empty; name a file, or -m and a module")
        if not python:
            here = topology.on == "local" and requirements is None  # nothing comes on top
            check_executable(command[0], folder, local=here)
        elif command[0] != "-m":
            check_script(command[0], folder, cwd)
            script = (folder / command[0]).resolve()
            if topology.on != "local" and not script.is_relative_to(cwd.resolve()):
                raise UsageError(
                    f"nodes see only {cwd} and what is below it, and the script is {script}; "
                    "call lab from a folder above it"
                )
        return cls(
            command=command,
            cwd=cwd,
            start=None if folder == cwd else folder,
            python=python,
            env=env or {},
            requirements=requirements,
            cold=cold,
            engine=cast("Engine", engine),
            min_nodes=min_nodes,
        )

    def __str__(self) -> str:
        return shlex.join(self.command)

    def to_json(self) -> dict[str, Any]:
        """Plain data, to be kept: values whose names say that they are secret are left out."""
        return {**self.model_dump(mode="json"), "env": redacted(self.env)}


def check_engine(engine: str, min_nodes: int | None, topology: Topology) -> None:
    """Raise UsageError where there is no such engine, or it cannot do with so few nodes."""
    engines = get_args(Engine)
    if engine not in engines:
        raise UsageError(
            f"--engine {engine}: there is no such engine; it is {' or '.join(engines)}"
        )
    if min_nodes is None:
        return
    if engine != "torchrun":
        raise UsageError("--min-nodes is for PyTorch's elastic agent; add --engine torchrun")
    if not 1 <= min_nodes <= topology.nnodes:
        raise UsageError(
            f"--min-nodes {min_nodes}: the topology {topology.name} has {topology.nnodes} "
            f"node{'s' * (topology.nnodes > 1)}; name a number from 1 to {topology.nnodes}"
        )


def _start_folder(start: Path | None, cwd: Path, topology: Topology) -> Path:
    if start is None:
        return cwd
    folder = (cwd / start).resolve()
    if not folder.is_dir():
        what = "is not a folder" if folder.exists() else "does not exist"
        raise UsageError(f"--cwd {start}: {folder} {what}")
    if topology.on != "local" and not folder.is_relative_to(cwd.resolve()):
        raise UsageError(
            f"--cwd {start}: nodes see only {cwd} and what is below it; "
            "name a folder there, or call lab from a folder above both"
        )
    return folder
