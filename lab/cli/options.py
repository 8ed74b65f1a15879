"""Options that several commands share, with one wording."""

import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from lab.cli.durations import seconds
from lab.errors import UsageError

if TYPE_CHECKING:
    from lab.runs.stall import Stall

WordsArgument = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="SCRIPT [ARGS]...",
        help="What every rank runs. Default: the topology's job.",
        show_default=False,
    ),
]
ModuleOption = Annotated[bool, typer.Option("-m", "--module", help="SCRIPT is a module's name.")]
EnvOption = Annotated[
    list[str] | None,
    typer.Option(
        "--env",
        metavar="NAME=VALUE",
        help="A variable for every rank; NAME alone passes yours. May be repeated.",
        show_default=False,
    ),
]
TopologyOption = Annotated[
    str | None,
    typer.Option(
        "-t",
        "--topology",
        metavar="NAME|FILE",
        help="Preset or topology file. Default: lab.yaml here, else the preset quad.",
        show_default=False,
        autocompletion=lambda incomplete: topologies(incomplete),
    ),
]
NodesOption = Annotated[
    str | None,
    typer.Option(
        "--nodes",
        metavar="N|SET",
        help="Other nodes than the topology's: a count or a node set.",
        show_default=False,
    ),
]
SlotsOption = Annotated[
    int | None,
    typer.Option(
        "--slots", metavar="M", help="Other ranks per node than the topology's.", show_default=False
    ),
]
OnOption = Annotated[
    str | None,
    typer.Option(
        "--on", metavar="PLACE", help="Where: local, docker, ssh or slurm.", show_default=False
    ),
]
BackendOption = Annotated[
    str | None,
    typer.Option("--backend", metavar="NAME", help="auto, gloo or nccl.", show_default=False),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON for programs.")]


def run_ids(incomplete: str) -> list[str]:
    """For the shell's completion: the runs of this folder, the latest first."""
    folder = Path("runs")
    return sorted(
        (
            path.parent.name
            for path in folder.glob("*/state.json")
            if incomplete in path.parent.name
        ),
        reverse=True,
    )


def topologies(incomplete: str) -> list[str]:
    """For the shell's completion: presets, and files that may be topologies."""
    from lab.topology.source import PRESETS, may_be_topology

    files = [str(path) for path in Path().glob("*.y*ml") if may_be_topology(path)]
    return [name for name in (*PRESETS, *files) if name.startswith(incomplete)]


RunArgument = Annotated[
    str | None,
    typer.Argument(
        metavar="[RUN]",
        help="A run's id or a part of it. Default: the latest.",
        show_default=False,
        autocompletion=run_ids,
    ),
]
RankOption = Annotated[
    list[str] | None,
    typer.Option(
        "--rank",
        metavar="RANKS",
        help="Show only these: 0,3 or 0-3,8. May be repeated.",
        show_default=False,
    ),
]


STALL, ON_STALL = "60s", "report"
"""Their defaults: those of `lab.runs.stall`, which a start does not import."""
StallOption = Annotated[
    str,
    typer.Option(
        "--stall",
        metavar="TIME",
        help="Say why when no rank makes progress for so long; 0: never.",
    ),
]
OnStallOption = Annotated[
    str,
    typer.Option(
        "--on-stall",
        metavar="WHAT",
        help="Then go on (report), or end the run with exit code 75 (stop).",
    ),
]


def stall_of(after: str, then: str) -> "Stall":
    """What `--stall` and `--on-stall` ask for.

    Raises:
        UsageError: they are none.
    """
    from lab.runs.stall import Stall

    return Stall.of(0.0 if after == "0" else seconds(after, "--stall"), then)


def chosen_ranks(texts: list[str] | None, world_size: int) -> frozenset[int] | None:
    """The ranks that `--rank` names; None where it names none.

    Raises:
        UsageError: it is no set of ranks, or there is no such rank.
    """
    if not texts:
        return None
    ranks: set[int] = set()
    for part in ",".join(texts).split(","):
        found = re.fullmatch(r"\s*(\d+)(?:-(\d+))?\s*", part)
        if found is None:
            raise UsageError(f"--rank {part}: write ranks as 0,3 or 0-3,8")
        first, last = int(found[1]), int(found[2] or found[1])
        if max(first, last) >= world_size:
            raise UsageError(
                f"there is no rank {max(first, last)}; the ranks are 0-{world_size - 1}"
            )
        if first > last:
            raise UsageError(f"--rank {part}: the first is above the last; write {last}-{first}")
        ranks.update(range(first, last + 1))
    return frozenset(ranks)
