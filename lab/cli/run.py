"""`lab run`: any torchrun-style script on the nodes of a topology."""

import os
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from lab.cli.console import (
    JsonConsole,
    Prefixes,
    RunConsole,
    progress_line,
)
from lab.cli.detach import start_detached
from lab.cli.durations import seconds
from lab.cli.ending import print_verdict
from lab.cli.interrupted import nodes_told
from lab.cli.options import (
    ON_STALL,
    STALL,
    BackendOption,
    EnvOption,
    JsonOption,
    ModuleOption,
    NodesOption,
    OnOption,
    OnStallOption,
    RankOption,
    SlotsOption,
    StallOption,
    TopologyOption,
    WordsArgument,
    chosen_ranks,
    stall_of,
)
from lab.cli.output import say
from lab.errors import UsageError

if TYPE_CHECKING:
    from lab.runs.directory import RunDirectory
    from lab.runs.verdict import Verdict
    from lab.topology import Topology


def run(
    words: WordsArgument = None,
    topology: TopologyOption = None,
    module: ModuleOption = False,
    nodes: NodesOption = None,
    slots: SlotsOption = None,
    on: OnOption = None,
    backend: BackendOption = None,
    grace: Annotated[
        float | None,
        typer.Option(
            min=0,
            metavar="S",
            help="Seconds between SIGTERM and SIGKILL for ranks that are ended. "
            "Default: 30; 1 after the failure of another rank.",
            show_default=False,
        ),
    ] = None,
    no_python: Annotated[
        bool, typer.Option("--no-python", help="SCRIPT is an executable, not for Python.")
    ] = False,
    env: EnvOption = None,
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
    requirements: Annotated[
        Path | None,
        typer.Option(
            "--requirements",
            metavar="FILE",
            help="Packages for this run on top of the nodes' own, as pip takes them. Installed "
            "once for each content.",
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
    max_restarts: Annotated[
        int | None,
        typer.Option(
            min=0,
            metavar="N",
            help="Begin again after a failure, at most N times: all ranks. Default: 0; "
            "with --min-nodes as many as nodes may be lost.",
            show_default=False,
        ),
    ] = None,
    cold: Annotated[
        bool, typer.Option("--cold", help="Start ranks from nothing, not from a warm process.")
    ] = False,
    engine: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            help="What starts the ranks: spawn (exact and fast), or torchrun (PyTorch's own).",
        ),
    ] = "spawn",
    min_nodes: Annotated[
        int | None,
        typer.Option(
            metavar="M",
            help="With --engine torchrun: go on when nodes are lost, while there are M.",
            show_default=False,
        ),
    ] = None,
    timeout: Annotated[
        str | None,
        typer.Option(
            metavar="TIME",
            help="End the run (exit code 124) when it takes longer: 90s, 5m, 2h.",
            show_default=False,
        ),
    ] = None,
    stall: StallOption = STALL,
    on_stall: OnStallOption = ON_STALL,
    collect: Annotated[
        list[str] | None,
        typer.Option(
            "--collect",
            metavar="GLOB",
            help="On ssh: bring these files, as seen from where the ranks start, from every node "
            "into its folder in the run directory. May be repeated.",
            show_default=False,
        ),
    ] = None,
    no_deploy: Annotated[
        bool,
        typer.Option(
            "--no-deploy", help="On ssh: refuse where the code on the hosts is not what is here."
        ),
    ] = False,
    audit: Annotated[
        bool,
        typer.Option(
            "--audit",
            help="Watch what the ranks compute and say what is silently wrong with the training.",
        ),
    ] = False,
    rank: RankOption = None,
    quiet: Annotated[bool, typer.Option("-q", "--quiet", help="Show only the verdict.")] = False,
    detach: Annotated[
        bool,
        typer.Option(
            "-d", "--detach", help="Print the run's id when its ranks start, and go on without you."
        ),
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Run a script, module or executable on every rank of a topology.

    lab's own options come before SCRIPT; all that follows it is the script's, where {node_rank},
    {nnodes}, {nproc}, {world_size}, {master_addr}, {master_port} and {run_dir} stand for what each
    node knows.

    The exit code is the first real failure's. Ctrl-C ends the ranks on every node; twice, at once.
    """
    from lab.batch.execute import execute
    from lab.runs.job import Job
    from lab.runs.stdin import Stdin
    from lab.runs.variables import job_variables, unmatched
    from lab.topology import load_topology

    limit = None if timeout is None else seconds(timeout, "--timeout")
    watch = stall_of(stall, on_stall)
    if detach and as_json:
        raise UsageError("--detach prints the run's id; leave --json out, then lab show --json ID")
    if as_json and (quiet or rank):
        raise UsageError("--json prints everything; leave --quiet and --rank out")
    loaded = load_topology(topology, nodes=nodes, slots=slots, on=on, backend=backend)
    if loaded.on in ("local", "docker") and (collect or no_deploy):
        option = "--collect" if collect else "--no-deploy"
        raise UsageError(f"{option} is for hosts over SSH; here all nodes have this very folder")
    job = Job.from_command_line(
        words or [],
        module=module,
        python=not no_python,
        topology=loaded,
        cwd=Path.cwd(),
        start=start,
        env=job_variables(os.environ, passed=pass_env or (), files=env_file or (), given=env or ()),
        requirements=requirements,
        cold=cold,
        engine=engine,
        min_nodes=min_nodes,
        collect=collect or (),
        audit=audit,
    )
    shown = chosen_ranks(rank, loaded.world_size)
    if not quiet:
        _warn_of_crowd(loaded)
        for pattern in unmatched(os.environ, pass_env or ()):
            print(f"lab: warning: --pass-env {pattern}: you have no such variable", file=sys.stderr)
    console = RunConsole(
        Prefixes({r.rank: r.node.name for r in loaded.ranks()}), () if quiet else shown
    )
    go = partial(
        execute,
        loaded,
        job,
        progress_line(quiet=quiet),
        grace=grace,
        timeout=limit,
        max_restarts=max_restarts,
        deploy=not no_deploy,
        stall=watch,
    )
    with nodes_told(loaded):
        if detach:
            start_detached(lambda started: _finish(go([console, started]), quiet))
            return
        # What was closed (`<&-`) may be another file's descriptor by now.
        stdin = None if sys.stdin is None else Stdin(console)
        if as_json:
            verdict = go([JsonConsole()], stdin=stdin)[1]
            JsonConsole().event({"type": "verdict", **verdict.to_json()})
            raise typer.Exit(verdict.exit_code)
        raise typer.Exit(_finish(go([console], stdin=stdin), quiet))


def _finish(outcome: "tuple[RunDirectory, Verdict]", quiet: bool) -> int:
    directory, verdict = outcome
    if not quiet:
        say(f"lab: logs and verdict are in {directory.path.relative_to(Path.cwd())}")
    print_verdict(verdict)
    return verdict.exit_code


def _warn_of_crowd(topology: "Topology") -> None:
    """Say so where ranks must share this machine's cores."""
    cores = len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1
    ranks = topology.world_size
    if topology.on in ("local", "docker") and ranks > cores:
        text = f"{ranks} ranks share the {cores} core{'s' * (cores > 1)} of this machine"
        print(f"lab: warning: {text}; expect them to be slow", file=sys.stderr)
