"""`lab hosts`: what the nodes of a topology are, as they tell it themselves."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from lab.cli.console import print_table
from lab.cli.options import JsonOption, NodesOption, OnOption, TopologyOption
from lab.cli.output import one_line

if TYPE_CHECKING:
    from lab.transport.facts import NodeFacts

COLUMNS = (
    "NODE", "ADDRESS", "REACHABLE", "OS", "CORES", "MEMORY", "GPUS", "PYTHON", "TORCH", "LOAD",
    "CLOCK", "DISK FREE",
)  # fmt: skip
CLOCK_SHOWN = 0.01
"""Seconds of skew that are worth a number."""


def hosts(
    topology: TopologyOption = None,
    nodes: NodesOption = None,
    on: OnOption = None,
    as_json: JsonOption = False,
) -> None:
    """What every node of a topology is: system, cores, memory, GPUs, Python, torch, load, clock.

    CLOCK is how far the node's clock is ahead of this machine's, DISK FREE is what is left where
    runs live. The exit code is 1 where a node cannot be reached.
    """
    from lab.topology import load_topology
    from lab.transport import transport_for
    from lab.transport.facts import gather

    loaded = load_topology(topology, nodes=nodes, on=on)
    folder = loaded.ssh.workdir if loaded.on == "ssh" else str(Path.cwd())
    found = gather(transport_for(loaded, Path.cwd()), folder)
    if as_json:
        print(json.dumps([one.as_data() for one in found]))
    else:
        _print_table(found)
    raise typer.Exit(any(one.facts is None for one in found))


def _print_table(found: "list[NodeFacts]") -> None:
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    for column in COLUMNS:
        right = column in ("CORES", "MEMORY", "LOAD", "CLOCK", "DISK FREE")
        table.add_column(column, justify="right" if right else "left")
    for one in found:
        if one.facts is None:
            table.add_row(one.node, one.reached_by, "no")
        else:
            table.add_row(one.node, one.reached_by, "yes", *map(one_line, _cells(one, one.facts)))
    print_table(table)
    for one in found:
        if one.facts is None:
            print(f"{one.node}: {one_line(one.problem or '')}")


def _cells(one: "NodeFacts", facts: dict[str, Any]) -> list[str]:
    from lab.deploy.tree import in_words

    def size(value: int | None) -> str:
        return "?" if value is None else in_words(value)

    gpus = [gpu["name"] for gpu in facts["gpus"]]
    kinds = [f"{gpus.count(name)} x {name}" for name in dict.fromkeys(gpus)]
    skew = one.clock_skew or 0.0
    return [
        facts["os"],
        f"{facts['cores']:g}",
        size(facts["memory"]),
        ", ".join(kinds) or "-",
        facts["python"],
        facts["torch"] or "-",
        "?" if facts["load"] is None else f"{facts['load']:.1f}",
        f"{skew:+.2f} s" if abs(skew) >= CLOCK_SHOWN else "ok",
        size(facts["disk_free"]),
    ]
