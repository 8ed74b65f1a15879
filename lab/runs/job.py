"""What is to be run: a script, module or executable, its arguments, and where it starts."""

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, cast, get_args

from pydantic import BaseModel, ConfigDict, Field, ValidationInfo, field_validator

from lab.errors import UsageError
from lab.runs.script import check_executable, check_script
from lab.runs.variables import check_variables, redacted
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
    """Where the ranks start, as seen from `cwd`; None: in it."""
    python: bool = True
    """Whether the command is for Python; else its first word is the executable."""
    env: Mapping[str, str] = {}
    """On top of the topology's."""
    requirements: Path | None = None
    """A requirements file of packages that the ranks need on top of the nodes' own."""
    collect: tuple[str, ...] = ()
    """Patterns of files that ranks write where they start, for the run directory to have.

    On hosts; on this machine's nodes they are here already."""
    cold: bool = False
    """Whether ranks must start from nothing, though the nodes may have a warm process."""
    engine: Engine = "spawn"
    """What starts the ranks on a node: its agent, or PyTorch's own, torchrun."""
    min_nodes: int | None = None
    """Of torchrun: how many nodes are enough to go on without the others; None: all, always."""
    audit: bool = False
    """Whether ranks note what they do, for the judges of `lab.diagnose.audit` to compare."""

    @field_validator("cwd")
    @classmethod
    def _absolute(cls, cwd: Path) -> Path:
        return cwd.absolute()

    @field_validator("start")
    @classmethod
    def _seen_from_cwd(cls, start: Path | None, info: ValidationInfo) -> Path | None:
        return None if start is None else (info.data["cwd"] / start).resolve()

    @property
    def variables(self) -> dict[str, str]:
        """What its ranks find on top of the topology's variables."""
        return {**self.env, **({"LAB_AUDIT": "1"} if self.audit else {})}

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
        collect: Sequence[str] = (),
        audit: bool = False,
    ) -> "Job":
        """The job that the command line names, else the topology's own.

        Raises:
            UsageError: there is nothing to run, or it cannot be run.
        """
        if module and not python:
            raise UsageError("-m is for Python's modules; leave it out, or leave --no-python out")
        if engine not in get_args(Engine):
            raise UsageError(
                f"--engine {engine}: there is no such engine; it is {' or '.join(get_args(Engine))}"
            )
        if words:
            command = ("-m", *words) if module else tuple(words)
        elif not python or module:
            flag = "-m needs a module" if module else "--no-python needs an executable"
            raise UsageError(f"{flag}: put it last, with its arguments")
        elif topology.job is None:
            raise UsageError(
                f"nothing to run: the topology {topology.name} has no job. "
                "Name a script: lab run SCRIPT [ARGS], or a module: lab run -m MODULE [ARGS]"
            )
        else:
            command = topology.job.argv
        job = cls(
            command=command,
            cwd=cwd,
            start=start,
            python=python,
            env=env or {},
            requirements=requirements,
            cold=cold,
            engine=cast("Engine", engine),
            min_nodes=min_nodes,
            collect=tuple(collect),
            audit=audit,
        )
        job.check(topology)
        return job

    def check(self, topology: Topology) -> None:
        """Look at what can be known to be wrong before anything is started.

        Raises:
            UsageError: this job cannot be run on that topology's nodes.
        """
        self._check_min_nodes(topology)
        self._check_start(topology)
        for pattern in self.collect:
            if not pattern or pattern.startswith("/") or ".." in Path(pattern).parts:
                raise UsageError(
                    f"--collect {pattern}: write it as seen from where the ranks start, without .."
                )
        check_variables(self.env)
        if self.audit and not self.python:
            raise UsageError("--audit looks into Python scripts; leave --no-python out")
        name, folder = self.command[0], self.start_folder
        if not name:
            raise UsageError("the script's name is empty; name a file, or -m and a module")
        if not self.python:
            here = topology.on == "local" and self.requirements is None  # nothing comes on top
            check_executable(name, folder, local=here)
        elif name == "-m":
            if not any(self.command[1:2]):
                raise UsageError("-m needs a module: put it last, with its arguments")
        else:
            check_script(name, folder, self.cwd)
            self._check_seen(topology, (folder / name).resolve(), f"the script {name}")

    def _check_min_nodes(self, topology: Topology) -> None:
        if self.min_nodes is None:
            return
        if self.engine != "torchrun":
            raise UsageError("--min-nodes is for PyTorch's elastic agent; add --engine torchrun")
        if not 1 <= self.min_nodes <= topology.nnodes:
            raise UsageError(
                f"--min-nodes {self.min_nodes}: the topology {topology.name} has {topology.nnodes} "
                f"node{'s' * (topology.nnodes > 1)}; name a number from 1 to {topology.nnodes}"
            )

    def _check_start(self, topology: Topology) -> None:
        if self.start is None:
            return
        if not self.start.is_dir():
            what = "is not a folder" if self.start.exists() else "does not exist"
            raise UsageError(f"--cwd: {self.start} {what}")
        self._check_seen(topology, self.start, "--cwd")

    def _check_seen(self, topology: Topology, path: Path, what: str) -> None:
        if topology.on != "local" and not path.is_relative_to(self.cwd.resolve()):
            raise UsageError(
                f"{what}: nodes see only {self.cwd} and what is below it, not {path}; "
                "call lab from a folder above both"
            )

    def __str__(self) -> str:
        return shlex.join(self.command)

    def to_json(self) -> dict[str, Any]:
        """Plain data, to be kept: values whose names say that they are secret are left out."""
        return {**self.model_dump(mode="json"), "env": redacted(self.env)}
