"""`lab check`: is the topology right, and which rank is where?"""

import shlex
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lab.cli.console import print_table
from lab.cli.options import (
    BackendOption,
    JsonOption,
    NodesOption,
    OnOption,
    SlotsOption,
    TopologyOption,
)
from lab.errors import UsageError

if TYPE_CHECKING:
    from rich.table import Table

    from lab.topology import Topology

HEAD, TAIL = 16, 4
"""Ranks shown of a world that has more than both together."""

TopologyArgument = Annotated[
    str | None,
    typer.Argument(
        metavar="[TOPOLOGY]",
        help="Preset or topology file. Default: lab.yaml here, else the preset quad.",
        show_default=False,
    ),
]


def named_once(argument: str | None, option: str | None) -> str | None:
    """The topology, which may be named as with other commands (-t), too.

    Raises:
        UsageError: it is named twice.
    """
    if argument is not None and option is not None:
        raise UsageError(f"{argument} and -t {option}: name one topology")
    return option if argument is None else argument


def check(
    argument: TopologyArgument = None,
    topology: TopologyOption = None,
    nodes: NodesOption = None,
    slots: SlotsOption = None,
    on: OnOption = None,
    backend: BackendOption = None,
    as_json: JsonOption = False,
) -> None:
    """Validate a topology and show its ranks; nothing is started."""
    from lab.topology import load_topology

    named = named_once(argument, topology)
    loaded = load_topology(named, nodes=nodes, slots=slots, on=on, backend=backend)
    if as_json:
        import json

        print(json.dumps(summary(loaded), indent=2))
        return

    print_table(rank_table(loaded))
    print()
    for name, value in totals(loaded):
        print(f"{name:<8}{value}")


def rank_table(topology: "Topology") -> "Table":
    """Ranks with the nodes they are on; of many only the first and the last."""
    from rich.table import Table

    addressed = any(node.address for node in topology.nodes)
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in ("rank", "local rank", "node rank"):
        table.add_column(column, justify="right")
    table.add_column("node")
    if addressed:
        table.add_column("address")

    world = topology.world_size
    bounded = world > HEAD + TAIL
    shown = [*range(HEAD), *range(world - TAIL, world)] if bounded else range(world)
    for number in shown:
        rank = topology.rank(number)
        if bounded and number == world - TAIL:
            table.add_row("...", "", "", f"({world - HEAD - TAIL:,} more)")
        cells = [str(rank.rank), str(rank.local_rank), str(rank.node_rank), rank.node.name]
        table.add_row(*cells, *([rank.node.address or ""] if addressed else []))
    return table


def totals(topology: "Topology") -> list[tuple[str, str]]:
    """What the topology comes to, as lines of a name and a value."""
    per_node = {node.slots for node in topology.nodes}
    each = f"{per_node.pop()} on each node" if len(per_node) == 1 else "as the nodes say"
    fewest = f", {topology.min_nodes:,} at least" if topology.min_nodes else ""
    backend = topology.resolved_backend()
    chosen = " (auto)" if topology.backend == "auto" else ""
    first = topology.master_node
    port = topology.master.port or "picked free for each run"
    lines = [
        ("name", topology.name),
        ("nodes", f"{topology.nnodes:,}{fewest}"),
        ("ranks", f"{topology.world_size:,} ({each})"),
        ("where", topology.on),
        ("backend", f"{backend}{chosen}"),
        ("master", f"{topology.master.addr or first.address or first.name}, port {port}"),
    ]
    if topology.job is not None:
        lines.append(("job", shlex.join(topology.job.argv)))
    return lines


def summary(topology: "Topology") -> dict[str, Any]:
    """The same for programs; the ranks of a node follow from its first rank and its slots."""
    first = topology.master_node
    firsts = topology.first_ranks
    return {
        "name": topology.name,
        "on": topology.on,
        "nnodes": topology.nnodes,
        "min_nodes": topology.min_nodes,
        "world_size": topology.world_size,
        "backend": topology.resolved_backend(),
        "master": {
            "addr": topology.master.addr or first.address or first.name,
            "port": topology.master.port,
        },
        "job": None if topology.job is None else list(topology.job.argv),
        "nodes": [
            {
                "name": node.name,
                "address": node.address,
                "node_rank": node_rank,
                "slots": node.slots,
                "first_rank": firsts[node_rank],
            }
            for node_rank, node in enumerate(topology.nodes)
        ],
    }
