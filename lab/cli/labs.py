"""`lab up`, `lab down`, `lab exec`, `lab gc`: the nodes as places."""

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from lab.cli.console import progress_line
from lab.cli.interrupted import nodes_told
from lab.cli.options import JsonOption, NodesOption, OnOption, SlotsOption, TopologyOption
from lab.cli.output import UNSEEN, write
from lab.errors import UsageError

if TYPE_CHECKING:
    from lab.channel import Channel, Progress
    from lab.topology import Topology
    from lab.transport import Transport


def up(
    topology: TopologyOption = None,
    nodes: NodesOption = None,
    slots: SlotsOption = None,
    on: OnOption = None,
) -> None:
    """Bring the nodes of a topology up and leave them up; `lab run` then starts at once on them."""
    from lab.runs.nodes import warm_up
    from lab.topology import SLURM_LAB, load_topology
    from lab.transport import transport_for

    if topology == SLURM_LAB:
        from lab.batch.cluster import SlurmLab

        with progress_line() as progress:
            loaded = SlurmLab(Path.cwd()).up(progress)
        print(f"lab: {SLURM_LAB} is up: {', '.join(node.name for node in loaded.nodes)}")
        return
    loaded = load_topology(topology, nodes=nodes, slots=slots, on=on)
    transport = transport_for(loaded, Path.cwd())
    with nodes_told(loaded), progress_line() as progress:
        transport.up(progress)
        warm_up(loaded, transport, Path.cwd())
    names = ", ".join(node.name for node in loaded.nodes[:8])
    more = f", ... ({loaded.nnodes} in all)" if loaded.nnodes > 8 else ""
    print(f"lab: {loaded.name} is up on {loaded.on}: {names}{more}")


def down(
    topology: TopologyOption = None,
    nodes: NodesOption = None,
    on: OnOption = None,
) -> None:
    """Remove the nodes of a topology and all that was made for them, and end what runs on them.

    Of hosts only what lab runs there ends; what was deployed stays.
    """
    from lab.topology import SLURM_LAB, SSH_LAB, load_topology
    from lab.transport import transport_for
    from lab.transport.engine import connect
    from lab.transport.labs import find_labs

    if topology == SLURM_LAB:
        from lab.batch.cluster import SlurmLab

        with progress_line() as progress:
            SlurmLab(Path.cwd()).down(progress)
        print(f"lab: {SLURM_LAB} is down: its containers and its topology are gone")
        return
    if topology == SSH_LAB:
        from lab.transport.ssh_lab import SshLab

        with progress_line() as progress:
            SshLab().down(progress)
        print(f"lab: {SSH_LAB} is down: its machines, keys and topology are gone")
        return
    loaded = load_topology(topology, nodes=nodes, on=on)
    others: list[str] = []
    was_up = True
    if loaded.on == "docker":
        client = connect(None)  # else the transport says what would do for new nodes
        here = [lab for lab in find_labs(client) if lab.ours and lab.workdir == Path.cwd()]
        client.close()
        others = sorted(lab.topology for lab in here if lab.topology != loaded.name)
        was_up = any(lab.topology == loaded.name for lab in here)
    with nodes_told(loaded), progress_line() as progress:
        _end_runs(loaded, progress)
        transport_for(loaded, Path.cwd()).down(progress)
    print(f"lab: {loaded.name} {'is down' if was_up else 'was not up in this folder'}")
    if others and not was_up:
        names = ", ".join(others)
        print(f"lab: still up in this folder: {names} (lab down -t, with its file or name)")


def _end_runs(loaded: "Topology", progress: "Progress") -> None:
    """Those of this folder on these nodes: else they would say that their nodes are lost."""
    from lab.cli.manage import end_run
    from lab.runs.directory import RunDirectory

    for run in RunDirectory.all(Path.cwd()):
        info = run.info()
        is_here = (info.get("topology"), info.get("on")) == (loaded.name, loaded.on)
        if is_here and run.state == "running" and "slurm" not in info:
            end_run(run, progress)


def exec_(
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="NODE [CMD]...",
            help="The node's name, and what to run there; default: a shell. With --all only CMD.",
            show_default=False,
        ),
    ] = None,
    everywhere: Annotated[
        bool,
        typer.Option("--all", help="On all nodes; those that answer the same are shown as one."),
    ] = False,
    topology: TopologyOption = None,
    nodes: NodesOption = None,
    on: OnOption = None,
) -> None:
    """Run a command on one node, or on all, as the ranks' user and in the working directory.

    The exit code is the command's; with --all the largest.
    """
    from lab.topology import load_topology
    from lab.transport import transport_for

    loaded = load_topology(topology, nodes=nodes, on=on)
    argv = words or []
    if not everywhere:
        if not argv:
            raise UsageError("lab exec needs the name of a node, or --all and a command")
        _exec_on_one(loaded, argv[0], _without_dashes(argv[1:]), topology)
    argv = _without_dashes(argv)
    if not argv:
        raise UsageError("--all needs a command: lab exec --all CMD")
    raise typer.Exit(_exec_on_all(transport_for(loaded, Path.cwd()), argv))


def _without_dashes(argv: list[str]) -> list[str]:
    """What follows --, as users of docker exec and kubectl exec write it."""
    return argv[1:] if argv[:1] == ["--"] else argv


def _exec_on_all(transport: "Transport", argv: list[str]) -> int:
    from lab.transport.everywhere import grouped, run_everywhere

    answers = run_everywhere(transport, argv)
    for names, answer in grouped(answers):
        if not answer.output and not answer.exit_code:
            continue
        end = f" (exit code {answer.exit_code})" if answer.exit_code else ""
        reason = f": {answer.problem}" if answer.problem else ""
        write(f"{names}{end}{reason}\n", sys.stdout)
        if answer.output:
            text = answer.output.decode("utf-8", "surrogateescape")
            write("".join(f"  {line}\n" for line in text.splitlines()), sys.stdout)
    return max(answer.exit_code for answer in answers.values())


def _exec_on_one(loaded: "Topology", node: str, argv: list[str], topology: str | None) -> NoReturn:
    from lab.cli.terminal import bridge
    from lab.transport import transport_for
    from lab.transport.local import LocalTransport

    found = next((n for n in loaded.nodes if n.name == node), None)
    if found is None:
        names = ", ".join(n.name for n in loaded.nodes[:8])
        raise UsageError(f"{loaded.name} has no node {node}; its nodes are {names}")
    transport = transport_for(loaded, Path.cwd())
    if not transport.alive(found):
        raise UsageError(f"{node} is not up; bring it up with lab up -t {topology or loaded.name}")
    argv = argv or ["bash"]
    if isinstance(transport, LocalTransport):
        raise typer.Exit(transport.call(found, argv))
    tty = sys.stdin.isatty() and sys.stdout.isatty()
    channel: Channel = transport.start(found, argv, tty=tty)
    raise typer.Exit(bridge(channel, tty))


def gc(
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only say what would be removed.")
    ] = False,
    images: Annotated[
        bool, typer.Option("--images", help="Also images of nodes that are not this lab's.")
    ] = False,
    venvs: Annotated[
        bool,
        typer.Option(
            "--venvs", help="Also what `lab run --requirements` has installed for local nodes."
        ),
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Find and remove what a killed controller or a broken start left behind."""
    from lab.cache import wheels_folder
    from lab.temporary import remove_left_folders
    from lab.transport.docker import engine_answers
    from lab.transport.garbage import collect_garbage, end_leftovers
    from lab.transport.venvs import remove_venvs

    with progress_line() as progress:
        progress("looking for processes and folders of runs that are over")
        removed = end_leftovers(dry_run) + remove_left_folders(dry_run, wheels_folder())
        progress("looking for containers")
        sees_containers = engine_answers()
        if sees_containers:
            removed += collect_garbage(Path.cwd(), dry_run, images=images)
        if venvs:
            progress("looking for what was installed for local nodes")
            removed += remove_venvs(dry_run)
    if as_json:
        print(json.dumps({"dry_run": dry_run, "removed": removed}))
        return
    verb = "would remove" if dry_run else "removed"
    for thing in removed:
        print(f"{verb} {thing}")
    if not removed:
        print("nothing to remove" + ("" if sees_containers else UNSEEN))
