"""`lab run`: any torchrun-style script on the nodes of a topology."""

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from lab.cli.console import (
    JsonConsole,
    Prefixes,
    RunConsole,
    print_verdict,
    progress_line,
)
from lab.cli.options import (
    BackendOption,
    JsonOption,
    NodesOption,
    OnOption,
    SlotsOption,
    TopologyOption,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lab.runs import Job, Listener, RunController, Verdict
    from lab.topology import Topology


def run(
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="SCRIPT [ARGS]...",
            help="What every rank runs. Default: the topology's job.",
            show_default=False,
        ),
    ] = None,
    topology: TopologyOption = None,
    module: Annotated[
        bool, typer.Option("-m", "--module", help="SCRIPT is a module's name.")
    ] = False,
    nodes: NodesOption = None,
    slots: SlotsOption = None,
    on: OnOption = None,
    backend: BackendOption = None,
    grace: Annotated[
        float, typer.Option(min=0, help="Seconds between SIGTERM and SIGKILL after Ctrl-C.")
    ] = 30.0,
    no_python: Annotated[
        bool, typer.Option("--no-python", help="SCRIPT is an executable, not for Python.")
    ] = False,
    env: Annotated[
        list[str] | None,
        typer.Option(
            "--env",
            metavar="NAME=VALUE",
            help="A variable for every rank; NAME alone passes yours. May be repeated.",
            show_default=False,
        ),
    ] = None,
    env_file: Annotated[
        list[Path] | None,
        typer.Option(
            "--env-file",
            metavar="FILE",
            help="NAME=VALUE lines, as docker takes them. May be repeated.",
            show_default=False,
        ),
    ] = None,
    pass_env: Annotated[
        list[str] | None,
        typer.Option(
            "--pass-env",
            metavar="GLOB",
            help="Pass your variables of these names, such as 'WANDB_*'. May be repeated.",
            show_default=False,
        ),
    ] = None,
    start: Annotated[
        Path | None,
        typer.Option(
            "--cwd",
            metavar="DIR",
            help="Where the ranks start; SCRIPT is looked for there. Default: here.",
            show_default=False,
        ),
    ] = None,
    cold: Annotated[
        bool, typer.Option("--cold", help="Start ranks from nothing, not from a warm process.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Run a script, module or executable on every rank of a topology.

    lab's own options come before SCRIPT; all that follows it is the script's, where {node_rank},
    {nnodes}, {nproc}, {world_size}, {master_addr}, {master_port} and {run_dir} stand for what each
    node knows. The exit code is the first real failure's. Ctrl-C ends the ranks on every node;
    twice, at once.
    """
    from lab.runs import Job, job_variables
    from lab.topology import load_topology

    loaded = load_topology(topology, nodes=nodes, slots=slots, on=on, backend=backend)
    job = Job.from_command_line(
        words or [],
        module=module,
        python=not no_python,
        topology=loaded,
        cwd=Path.cwd(),
        start=start,
        env=job_variables(os.environ, passed=pass_env or (), files=env_file or (), given=env or ()),
        cold=cold,
    )
    if as_json:
        verdict = execute(loaded, job, [JsonConsole()], grace=grace)[1]
        JsonConsole().event({"type": "verdict", **verdict.to_json()})
    else:
        console = RunConsole(Prefixes({r.rank: r.node.name for r in loaded.ranks()}))
        controller, verdict = execute(loaded, job, [console], grace=grace)
        where = controller.directory.path.relative_to(Path.cwd())
        print(f"lab: logs and verdict are in {where}", file=sys.stderr)
        print_verdict(verdict, console)
    raise typer.Exit(verdict.exit_code)


def execute(
    topology: "Topology",
    job: "Job",
    listeners: "Sequence[Listener]" = (),
    *,
    grace: float = 30.0,
) -> "tuple[RunController, Verdict]":
    """Run a job to its end, with a progress line while its nodes come up.

    Raises:
        LabError: it could not be started.
    """
    from lab.runs import RunController
    from lab.transport import transport_for

    transport = transport_for(topology, job.cwd)
    controller = RunController(topology, job, transport, listeners, grace)
    with progress_line() as progress:
        controller.up(progress)
    return controller, controller.run()
