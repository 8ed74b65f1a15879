"""The section `slurm` of a topology: what is asked of a SLURM cluster.

Most values end up in a line `#SBATCH --option=value`. Slurm cuts such a line at a space, takes `#`
for a comment and what comes on a new line for another option: so what could become more than one
word is refused.
"""

import re
from collections.abc import Callable
from typing import Annotated, Literal

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from lab.topology.options import Section, Text
from lab.topology.units import read_slurm_time


def _matching(pattern: str, allowed: str) -> Callable[[str], str]:
    compiled = re.compile(pattern)

    def check(text: str) -> str:
        if compiled.fullmatch(text) is None:
            raise ValueError(f"must be {allowed}")
        return text

    return check


Word = Annotated[
    str,
    AfterValidator(
        _matching(
            r"[A-Za-z0-9_][A-Za-z0-9_.,+-]*",
            "a name as Slurm knows it: letters, digits, and _ . , + - inside",
        )
    ),
]
Constraint = Annotated[
    str,
    AfterValidator(
        _matching(
            r"[A-Za-z0-9_(\[!][A-Za-z0-9_.,+\-&|*()\[\]!:]*",
            "features, joined by & or |, without spaces",
        )
    ),
]
Gres = Annotated[
    str,
    AfterValidator(
        _matching(r"[A-Za-z0-9_]+(:[A-Za-z0-9_.-]+){0,2}(,[A-Za-z0-9_:.-]+)*", "as in gpu:a100:4")
    ),
]
Array = Annotated[
    str,
    AfterValidator(
        _matching(r"\d+(-\d+(:\d+)?)?(,\d+(-\d+(:\d+)?)?)*(%\d+)?", "indices, such as 0-7 or 1,3%1")
    ),
]
Dependency = Annotated[
    str,
    AfterValidator(
        _matching(r"[a-z]+(:[0-9_+]+)*([,?][a-z]+(:[0-9_+]+)*)*", "as in afterok:1234:1235")
    ),
]
SlurmMemory = Annotated[
    str, AfterValidator(_matching(r"\d{1,9}[KMGT]?", "Slurm's: 512M, 16G; 0 for all of a node"))
]
PathWord = Annotated[
    str,
    AfterValidator(
        _matching(
            r"[\w./~%+@][\w./~%+@:,=-]*", "a path of letters, digits and . _ / ~ % + @ : , = -"
        )
    ),
]
Module = Annotated[
    str, AfterValidator(_matching(r"[A-Za-z0-9_][A-Za-z0-9_.+/-]*", "as in cuda/12.4"))
]
Image = Annotated[
    str, AfterValidator(_matching(r"[\w./][\w./:@#+=-]*", "an image or the path of one"))
]
KEPT = frozenset(
    (
        *("array", "nodes", "ntasks", "ntasks-per-node", "wrap", "chdir", "export", "export-file"),
        *("signal", "requeue", "no-requeue", "open-mode", "parsable", "test-only", "wait"),
    )
)
"""Options of sbatch that the job script, or whoever submits it, needs as it sets them itself."""


def _is_extra(option: str) -> str:
    name = option.removeprefix("--").partition("=")[0]
    if any(kept.startswith(name) for kept in KEPT):  # sbatch takes a beginning, too
        raise ValueError(f"must be none that lab sets by itself, as it does --{name}")
    return option


Extra = Annotated[
    str,
    AfterValidator(
        _matching(
            r"--[a-z][a-z0-9-]*(=[^\s#'\"\\$`]+)?",
            "an option of sbatch in one piece, such as --qos=high",
        )
    ),
    AfterValidator(_is_extra),
]


Launcher = Literal["torchrun", "srun"]


class SlurmContainer(Section):
    """The container that each node's part runs in, where the cluster can start one."""

    image: Image
    """An image of a registry, or a file (pyxis: .sqsh, apptainer: .sif)."""
    runtime: Literal["pyxis", "apptainer"] = "pyxis"
    """`pyxis` is a plugin of srun (`--container-image`); `apptainer` is a command."""
    mounts: Annotated[tuple[PathWord, ...], Field(strict=False)] = ()
    """Folders to see inside, as `host:inside`. The working directory always is."""


class SlurmOptions(Section):
    """What is asked of a SLURM cluster. Node names bind in order to the allocation's hosts."""

    launcher: Launcher = "torchrun"
    """What starts the ranks: torchrun, once on each node; or srun itself, each rank as a task."""
    job_name: Word | None = None
    """Default: the topology's name."""
    partition: Word | None = None
    """Partition (queue) to submit to. Default: the cluster's."""
    account: Word | None = None
    """Account to charge. Default: the user's."""
    qos: Word | None = None
    """Quality of service."""
    constraint: Constraint | None = None
    """Features that the nodes must have, such as a100."""
    reservation: Word | None = None
    """Reservation to use."""
    exclusive: bool = False
    """Whether the nodes are for this job alone."""
    array: Array | None = None
    """Run the job several times; each is a job of its own."""
    dependency: Dependency | None = None
    """Jobs to wait for."""
    time: Annotated[str, BeforeValidator(read_slurm_time)] | None = None
    """Time limit, in quotes: "01:00:00" (hours:minutes:seconds); a number is minutes."""
    mem: SlurmMemory | None = None
    """Memory of each node, in Slurm's units. Default: the cluster's."""
    cpus_per_task: Annotated[int, Field(ge=1, le=4096)] | None = None
    """Cores of each task: of a node's torchrun with all its ranks, or of each rank."""
    gpus_per_node: Annotated[int, Field(ge=1, le=64)] | None = None
    """GPUs to ask for on each node. Default: none."""
    gres: Gres | None = None
    """Other resources of each node, or GPUs where they are asked for like that."""
    output: PathWord = "slurm-%j.out"
    """Where the job's own output goes, with Slurm's placeholders. Ranks have files of their own."""
    modules: Annotated[tuple[Module, ...], Field(strict=False)] = ()
    """Environment modules to load."""
    conda: PathWord | None = None
    """Conda environment to activate: its name or folder."""
    venv: PathWord | None = None
    """Virtual environment to activate: its folder, which all nodes see."""
    python: PathWord = "python3"
    """The Python that has torch: a name on PATH or a path."""
    container: SlurmContainer | None = None
    """Run in a container."""
    warn_before: Annotated[int, Field(ge=0, le=3600)] = 60
    """Seconds before the end at which ranks are told (SIGUSR2), to save. 0: never."""
    requeues: Annotated[int, Field(ge=0, le=1000)] = 3
    """How often a job that saved, or was preempted, may begin again."""
    login: Text | None = None
    """Where sbatch is, if not on this machine: a host as ssh knows it."""
    extra: Annotated[tuple[Extra, ...], Field(strict=False)] = ()
    """Further options of sbatch, each in one piece: [--mail-type=END]."""

    @model_validator(mode="after")
    def _one_environment(self) -> "SlurmOptions":
        if self.conda is not None and self.venv is not None:
            raise ValueError("must have conda or venv, not both")
        return self
