"""`lab up`, `lab down`, `lab exec`, `lab gc`: the nodes as places."""

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from lab.cli.console import progress_line
from lab.cli.options import JsonOption, NodesOption, OnOption, SlotsOption, TopologyOption
from lab.errors import UsageError

if TYPE_CHECKING:
    from lab.transport import Channel


def up(
    topology: TopologyOption = None,
    nodes: NodesOption = None,
    slots: SlotsOption = None,
    on: OnOption = None,
) -> None:
    """Bring the nodes of a topology up and leave them up; `lab run` then starts at once on them."""
    from lab.runs.nodes import warm_up
    from lab.topology import load_topology
    from lab.transport import transport_for

    loaded = load_topology(topology, nodes=nodes, slots=slots, on=on)
    transport = transport_for(loaded, Path.cwd())
    with progress_line() as progress:
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
    """Remove the nodes of a topology and all that was made for them."""
    from lab.topology import load_topology
    from lab.transport import transport_for

    loaded = load_topology(topology, nodes=nodes, on=on)
    with progress_line() as progress:
        transport_for(loaded, Path.cwd()).down(progress)
    print(f"lab: {loaded.name} is down")


def exec_(
    node: Annotated[str, typer.Argument(metavar="NODE", help="The node's name.")],
    command: Annotated[
        list[str] | None,
        typer.Argument(metavar="[CMD]...", help="Default: a shell.", show_default=False),
    ] = None,
    topology: TopologyOption = None,
    on: OnOption = None,
) -> None:
    """Run a command on one node, as the ranks' user and in the working directory."""
    from lab.cli.terminal import bridge
    from lab.topology import load_topology
    from lab.transport import transport_for
    from lab.transport.local import LocalTransport

    loaded = load_topology(topology, on=on)
    found = next((n for n in loaded.nodes if n.name == node), None)
    if found is None:
        names = ", ".join(n.name for n in loaded.nodes[:8])
        raise UsageError(f"{loaded.name} has no node {node}; its nodes are {names}")
    transport = transport_for(loaded, Path.cwd())
    if not transport.alive(found):
        raise UsageError(f"{node} is not up; bring it up with lab up -t {topology or loaded.name}")
    argv = command or []
    if argv[:1] == ["--"]:  # as users of docker exec and kubectl exec write it
        argv = argv[1:]
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
    from lab.transport.docker import engine_answers
    from lab.transport.garbage import collect_garbage, end_leftovers
    from lab.transport.venvs import remove_venvs

    removed = end_leftovers(dry_run)
    if engine_answers():
        removed += collect_garbage(dry_run, images=images)
    if venvs:
        removed += remove_venvs(dry_run)
    if as_json:
        print(json.dumps({"dry_run": dry_run, "removed": removed}))
        return
    verb = "would remove" if dry_run else "removed"
    for thing in removed:
        print(f"{verb} {thing}")
    if not removed:
        print("nothing to remove")
