"""`lab bench`: measurements as tables, and as JSON in outputs/."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from lab.cli.console import progress_line, table_console
from lab.cli.options import NodesOption, OnOption, SlotsOption, TopologyOption

app = typer.Typer(help="Measure, side by side with the alternative.", no_args_is_help=True)

RunsOption = Annotated[int, typer.Option("--runs", min=1, help="Counted runs of each.")]


@app.command()
def check(runs: RunsOption = 5) -> None:
    """Wall time and peak memory of `lab check` by cluster size, and of `lab --help`."""
    from lab.bench.check import bench_check

    with progress_line() as progress:
        progress("measuring lab check and lab --help")
        rows = bench_check(runs)
    _show("check", rows)


@app.command()
def startup(
    topology: TopologyOption = None,
    nodes: NodesOption = None,
    slots: SlotsOption = None,
    runs: RunsOption = 7,
) -> None:
    """From `lab run` to the end of a first all-reduce, beside torchrun in the same containers."""
    from lab.bench.startup import bench_startup
    from lab.topology import load_topology

    loaded = load_topology(topology, nodes=nodes, slots=slots, on="docker")
    with progress_line() as progress:
        rows = bench_startup(loaded, runs, progress)
    _show("startup", rows)


@app.command()
def flood(
    topology: TopologyOption = None,
    on: OnOption = None,
    nodes: NodesOption = None,
    runs: RunsOption = 3,
) -> None:
    """Lines per second from ranks that print without pause, and the memory that this takes."""
    from lab.bench.flood import bench_flood
    from lab.topology import load_topology

    loaded = load_topology(topology, nodes=nodes, on=on)
    with progress_line() as progress:
        rows = bench_flood(loaded, runs, progress)
    _show("flood", rows)


@app.command()
def link(runs: RunsOption = 3) -> None:
    """Bandwidth between two containers by the rate that the topology asks for."""
    from lab.bench.link import bench_link

    with progress_line() as progress:
        rows = bench_link(runs, progress)
    _show("link", rows)


def _show(name: str, rows: Sequence[dict[str, Any]]) -> None:
    """A table of the rows, and outputs/bench-NAME.json with all of it."""
    from rich.table import Table

    from lab.runs import write_json

    columns = [key for key in rows[0] if not isinstance(rows[0][key], list)]
    table = Table(box=None, pad_edge=False)
    for column in columns:
        table.add_column(column, justify="left" if isinstance(rows[0][column], str) else "right")
    for row in rows:
        table.add_row(*(_cell(row.get(column)) for column in columns))
    table_console().print(table)
    path = Path("outputs") / f"bench-{name}.json"
    write_json(path, rows)
    print(f"written to {path}")


def _cell(value: object) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)
