"""`lab render`: exactly what would be started, as text."""

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from lab.cli.check import TopologyArgument, named_once
from lab.cli.options import BackendOption, NodesOption, OnOption, SlotsOption, TopologyOption

if TYPE_CHECKING:
    from lab.topology import Topology


class Form(StrEnum):
    """What a topology can be rendered as."""

    COMPOSE = "compose"
    ENV = "env"
    HOSTFILE = "hostfile"
    SBATCH = "sbatch"
    SSH = "ssh"


def render(
    form: Annotated[
        Form,
        typer.Option(
            "--as",
            help="A Compose file; each rank's environment for a shell; ADDRESS slots=N lines; "
            "a job script for Slurm; what lab deploy and lab run do on hosts.",
            show_default=False,
        ),
    ],
    argument: TopologyArgument = None,
    topology: TopologyOption = None,
    nodes: NodesOption = None,
    slots: SlotsOption = None,
    on: OnOption = None,
    backend: BackendOption = None,
) -> None:
    """Print what would be started, for other tools and to look at first; nothing is started."""
    from lab.topology import load_topology

    named = named_once(argument, topology)
    loaded = load_topology(named, nodes=nodes, slots=slots, on=on, backend=backend)
    if form is Form.COMPOSE:
        from lab.transport.compose import render_compose

        text = render_compose(loaded)
    elif form is Form.ENV:
        from lab.transport.hostfile import render_env

        text = render_env(loaded)
    elif form is Form.SBATCH:
        from lab.batch.script import render_sbatch

        text = render_sbatch(loaded)
    elif form is Form.SSH:
        text = _ssh(loaded)
    else:
        from lab.transport.hostfile import render_hostfile

        text = render_hostfile(loaded)
    print(text, end="" if text.endswith("\n") else "\n")


def _ssh(topology: "Topology") -> str:
    from lab.deploy.plan import Plan
    from lab.transport.ssh_hosts import SshHosts
    from lab.transport.ssh_render import render_ssh

    hosts = SshHosts(topology)
    places = {node.name: hosts.unopened(node).place for node in topology.nodes}
    return render_ssh(Plan.of(topology, Path.cwd(), None), places)
