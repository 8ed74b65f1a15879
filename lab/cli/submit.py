"""`lab submit` and `lab requeue`: jobs of Slurm."""

import json
import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from lab.cli.ending import print_verdict
from lab.cli.options import (
    ON_STALL,
    STALL,
    BackendOption,
    EnvOption,
    JsonOption,
    ModuleOption,
    NodesOption,
    OnStallOption,
    RunArgument,
    SlotsOption,
    StallOption,
    TopologyOption,
    WordsArgument,
    stall_of,
)
from lab.cli.output import say
from lab.errors import UsageError


def submit(
    words: WordsArgument = None,
    topology: TopologyOption = None,
    module: ModuleOption = False,
    nodes: NodesOption = None,
    slots: SlotsOption = None,
    backend: BackendOption = None,
    env: EnvOption = None,
    audit: Annotated[
        bool, typer.Option("--audit", help="Look for what is silently wrong with the training.")
    ] = False,
    stall: StallOption = STALL,
    on_stall: OnStallOption = ON_STALL,
    wait: Annotated[bool, typer.Option("--wait", help="Wait for the end of the job.")] = False,
    test_only: Annotated[
        bool, typer.Option("--test-only", help="Ask sbatch when it would begin; submit nothing.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Submit a script to Slurm; prints the run's id. It goes on without you: lab logs -f, lab ps.

    What is submitted is what lab render --as sbatch prints.
    """
    from lab.batch.run import BatchRun, ask_first
    from lab.runs.job import Job
    from lab.runs.variables import job_variables
    from lab.topology import load_topology

    watch = stall_of(stall, on_stall)
    loaded = load_topology(topology, nodes=nodes, slots=slots, on="slurm", backend=backend)
    job = Job.from_command_line(
        words or [],
        module=module,
        topology=loaded,
        cwd=Path.cwd(),
        env=job_variables(os.environ, passed=(), files=(), given=env or ()),
        audit=audit,
    )
    if test_only:
        print(ask_first(loaded, job))
        return
    run = BatchRun.submit(loaded, job, stall=watch)
    if as_json:
        print(json.dumps({"run": run.directory.id, "job": run.job_id}))
    else:
        print(run.directory.id)
        say(f"lab: job {run.job_id} is submitted; lab logs -f shows what it says")
    sys.stdout.flush()
    if wait:
        verdict = run.follow()
        print_verdict(verdict)
        raise typer.Exit(verdict.exit_code)


def requeue(run_id: RunArgument = None) -> None:
    """Put a job of Slurm back into the queue: it begins again, and a script that can resumes."""
    from lab.batch.run import BatchRun
    from lab.runs.directory import RunDirectory

    directory = RunDirectory.find(Path.cwd(), run_id)
    if "slurm" not in directory.info():
        raise UsageError(f"run {directory.id} is no job of Slurm: start it again with lab run")
    run = BatchRun(directory)
    run.requeue()
    say(f"lab: job {run.job_id} of run {directory.id} is back in the queue")
