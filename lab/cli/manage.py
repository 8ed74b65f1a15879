"""`lab show`, `lab stop` and `lab rm`: one run, from its directory."""

import json
import os
import signal
import sys
import time
from datetime import datetime
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lab.cli.console import progress_line
from lab.cli.jobs import note_ends, state_in_words
from lab.cli.options import JsonOption, RunArgument, run_ids
from lab.cli.output import one_line, say
from lab.errors import LabError, UsageError

if TYPE_CHECKING:
    from lab.channel import Progress
    from lab.runs.directory import RunDirectory
    from lab.topology import Topology

POLL = 0.1
"""Seconds between two looks at a run that was asked to end."""
LAST_PATIENCE = 30.0
"""Seconds for the controller of a run that has ended to end itself."""
AT_ONCE = 0.5
"""Seconds between the two signals of `lab stop --now`, so that they do not become one."""


def show(run_id: RunArgument = None, as_json: JsonOption = False) -> None:
    """A run: its topology, its job, its environment and its verdict."""
    from lab.runs.directory import RunDirectory

    run = RunDirectory.find(Path.cwd(), run_id)
    note_ends([run])
    data = _described(run)
    if as_json:
        print(json.dumps(data, indent=2))
        return
    for name, value in _shown(run, data):
        print(f"{name:<9} {one_line(value)}")


def _described(run: "RunDirectory") -> dict[str, Any]:
    """Everything about a run but its logs."""
    return {
        "id": run.id,
        "directory": str(run.path),
        **run.info(),
        "state": run.state,
        "topology_file": str(run.path / "topology.yaml"),
        "job": run.read_json("job.json"),
        "places": run.places(),
        "verdict": run.read_json("verdict.json"),
    }


def _to_the_second(created: str | None) -> str:
    return datetime.fromisoformat(created).isoformat(timespec="seconds") if created else "?"


def _shown(run: "RunDirectory", data: dict[str, Any]) -> list[tuple[str, str]]:
    from lab.topology import load_topology

    info = run.info()
    topology = load_topology(str(run.path / "topology.yaml"))
    job = data["job"] or {}
    places = data["places"]
    lines = [
        ("run", run.id),
        ("state", state_in_words(data["state"], info)),
        ("created", _to_the_second(info.get("created"))),
        ("topology", f"{topology.name} on {topology.on}: {_size(topology)}"),
        ("file", str(run.path / "topology.yaml")),
        ("job", str(info.get("job", "?"))),
        ("cwd", str(job.get("start") or job.get("cwd"))),
    ]
    if job.get("engine", "spawn") != "spawn":
        least = job.get("min_nodes")
        lines.append(("engine", job["engine"] + (f", --min-nodes {least}" if least else "")))
    if places["master"]:
        lines.append(("master", places["master"]))
    for node, (first, after) in zip(topology.nodes, pairwise(topology.first_ranks), strict=True):
        words = places["nodes"].get(node.name, "no answer")
        ranks = f"ranks {first}-{after - 1}" if node.slots > 1 else f"rank {first}"
        where = words if job.get("min_nodes") else f"{ranks}, {words}"  # torchrun numbers anew
        lines.append(("node", f"{node.name}: {where}"))
    environment = {**topology.env, **job.get("env", {})}
    lines += [("env", f"{name}={value}") for name, value in environment.items()]
    verdict = data["verdict"]
    if verdict is None:
        nothing = "none yet" if data["state"] == "running" else "none: its controller was killed"
        return [*lines, ("verdict", nothing)]
    lines.append(("verdict", f"{verdict['summary']} (exit code {verdict['exit_code']})"))
    for name in ("victims", "ended", "lost_nodes"):
        if verdict.get(name):
            lines.append((name, ", ".join(map(str, verdict[name]))))
    lines += [("other", reason) for reason in verdict.get("other_reasons", ())]
    if verdict.get("why"):
        lines.append(("why", f"{verdict['why']['kind']}: {verdict['why']['summary']}"))
    for finding in verdict.get("findings", ()):
        lines.append(("audit", f"{finding['kind']}: {finding['summary']}"))
    if verdict.get("hint"):
        lines.append(("hint", verdict["hint"]))
    return [*lines, ("logs", f"lab logs {run.id}")]


def _size(topology: "Topology") -> str:
    nodes = f"{topology.nnodes} node{'s' * (topology.nnodes > 1)}"
    slots = {node.slots for node in topology.nodes}
    each = f" x {slots.pop()}" if len(slots) == 1 else ""
    ranks = f"{topology.world_size} rank{'s' * (topology.world_size > 1)}"
    return f"{nodes}{each}, {ranks}"


def stop(
    run_id: Annotated[
        str | None,
        typer.Argument(
            metavar="[RUN]",
            help="A run's id or a part of it. Default: the one that runs.",
            show_default=False,
            autocompletion=run_ids,
        ),
    ] = None,
    now: Annotated[
        bool, typer.Option("--now", help="Kill its ranks at once, without their grace.")
    ] = False,
) -> None:
    """End a run as Ctrl-C would, and wait for its end."""
    from lab.runs.directory import RunDirectory

    run = _running(Path.cwd()) if run_id is None else RunDirectory.find(Path.cwd(), run_id)
    note_ends([run])
    if run.state == "finished":
        raise UsageError(f"run {run.id} has ended already: {run.info().get('summary')}")
    if run.state == "died":
        raise UsageError(
            f"run {run.id} has no controller any more (it was killed, and its ranks with it); "
            "lab gc removes what may be left of them"
        )
    if "slurm" in run.info():
        _cancel(run)
        return
    with progress_line() as progress:
        end_run(run, progress, now=now)
    info = run.info()
    if info.get("state") != "finished":
        raise LabError(f"run {run.id}: its controller ended without a verdict")
    print(f"lab: run {run.id} has ended: {info['summary']}", file=sys.stderr)


def end_run(run: "RunDirectory", progress: "Progress", *, now: bool = False) -> None:
    """Ctrl-C to the controller of a run that goes on, twice for `now`, and wait for its end.

    Raises:
        LabError: it is another user's.
    """
    from lab.node.processes import lives

    controller = run.info()["controller"]
    pid = int(controller["pid"])
    progress(f"asked run {run.id} to end; waiting for its ranks")
    _signal(pid)
    if now:
        time.sleep(AT_ONCE)
        if run.state == "running":
            _signal(pid)
    while run.state == "running":
        time.sleep(POLL)
    # It still has its nodes to let go and its last words to say.
    give_up = time.monotonic() + LAST_PATIENCE
    while lives(controller) and time.monotonic() < give_up:
        time.sleep(POLL)


def _cancel(run: "RunDirectory") -> None:
    """End a job of Slurm."""
    from lab.batch.run import BatchRun

    job = BatchRun(run)
    with progress_line() as progress:
        progress(f"asked Slurm to end job {job.job_id} of run {run.id}; waiting for its end")
        job.cancel()
        verdict = job.follow()
    say(f"lab: run {run.id} has ended: {verdict.summary}")


def _running(cwd: Path) -> "RunDirectory":
    from lab.runs.directory import RunDirectory

    runs = RunDirectory.all(cwd)
    note_ends(runs)
    running = [run for run in runs if run.state == "running"]
    if len(running) == 1:
        return running[0]
    if not running:
        raise UsageError(f"no run of {cwd} is running; lab ps shows them all")
    ids = ", ".join(run.id for run in running)
    raise UsageError(f"several runs are running; name one of them: {ids}")


def _signal(pid: int) -> None:
    """Ctrl-C to a controller; `RunDirectory.state` has just said that the pid is still its."""
    try:
        os.kill(pid, signal.SIGINT)
        os.kill(pid, signal.SIGCONT)  # after Ctrl-Z it hears nothing
    except ProcessLookupError:
        pass
    except PermissionError as error:
        raise LabError(f"process {pid} belongs to another user, who can stop the run") from error


def rm(
    names: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[RUN]...",
            help="Ids of runs, or parts of them.",
            show_default=False,
            autocompletion=run_ids,
        ),
    ] = None,
    all_finished: Annotated[
        bool, typer.Option("--all-finished", help="All that do not run any more.")
    ] = False,
) -> None:
    """Remove the directories of runs that have ended, with their logs."""
    from lab.batch.code import remove_unused
    from lab.runs.directory import RUNS, RunDirectory
    from lab.transport.garbage import end_leftovers

    cwd = Path.cwd()
    if bool(names) == all_finished:
        raise UsageError("name the runs to remove, or give --all-finished")
    note_ends(RunDirectory.all(cwd))
    if all_finished:
        runs = [run for run in RunDirectory.all(cwd) if run.state != "running"]
    else:
        runs = [RunDirectory.find(cwd, name) for name in names or ()]
    for run in runs:
        run.check_removable()
    for run in {run.id: run for run in runs}.values():
        end_leftovers(run=run.path)  # by its directory gc knows whose they are
        run.remove()
        print(run.id)
    remove_unused(cwd / RUNS)
