"""Options that several commands share, with one wording."""

from typing import Annotated

import typer

TopologyOption = Annotated[
    str | None,
    typer.Option(
        "-t",
        "--topology",
        metavar="NAME|FILE",
        help="Preset or topology file. Default: lab.yaml here, else the preset quad.",
        show_default=False,
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
