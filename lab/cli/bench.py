"""`lab bench`: measurements as tables, and as JSON in outputs/."""

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lab.cli.console import print_table, progress_line
from lab.cli.options import NodesOption, OnOption, SlotsOption, TopologyOption

if TYPE_CHECKING:
    from lab.bench.suites import Suite
    from lab.channel import Progress

app = typer.Typer(help="Measure, side by side with the alternative.", no_args_is_help=True)

RunsOption = Annotated[int, typer.Option("--runs", min=1, help="Counted runs of each.")]
RoundsOption = Annotated[int, typer.Option("--runs", min=1, help="Rounds that count.")]
RateOption = Annotated[
    str,
    typer.Option(
        "--rate", metavar="RATES", help="Link limits, one after another: none,1gbit,200mbit."
    ),
]
OnlyOption = Annotated[
    list[str] | None,
    typer.Option("--only", metavar="SECTION", help="This section alone. May be repeated."),
]
WidthOption = Annotated[
    int | None,
    typer.Option("--width", min=1, help="Of the MLP's layers. Default 512: 4.7 M parameters."),
]
BatchOption = Annotated[
    int | None, typer.Option("--batch", min=1, help="Samples per rank and step. Default 256.")
]


@app.command()
def check(runs: RunsOption = 5) -> None:
    """Wall time and peak memory of `lab check` by cluster size, and of `lab --help`."""
    from lab.bench.check import bench_check

    _measure("check", partial(bench_check, runs))


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
    _measure("startup", partial(bench_startup, loaded, runs))


@app.command()
def slurm(
    topology: TopologyOption = None,
    nodes: NodesOption = None,
    slots: SlotsOption = None,
    runs: RunsOption = 5,
) -> None:
    """From `lab run` to the end of a first all-reduce on Slurm, beside sbatch by hand."""
    from lab.bench.slurm import bench_slurm
    from lab.topology import load_topology

    loaded = load_topology(topology, nodes=nodes, slots=slots, on="slurm")
    _measure("slurm", partial(bench_slurm, loaded, runs))


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
    _measure("flood", partial(bench_flood, loaded, runs))


@app.command()
def death(
    topology: TopologyOption = None,
    nodes: NodesOption = None,
    slots: SlotsOption = None,
    on: OnOption = None,
    runs: RunsOption = 5,
) -> None:
    """From one rank's SIGKILL to the end of all others; on containers beside torchrun."""
    from lab.bench.death import bench_death
    from lab.topology import load_topology

    loaded = load_topology(topology, nodes=nodes, slots=slots, on=on)
    _measure(f"death-{loaded.on}", partial(bench_death, loaded, runs))


@app.command()
def audit(
    topology: TopologyOption = None,
    nodes: NodesOption = None,
    slots: SlotsOption = None,
    on: OnOption = None,
    runs: RunsOption = 5,
) -> None:
    """What `lab run --audit` costs: a training step with and without it, in turns."""
    from lab.bench.audit import bench_audit
    from lab.topology import load_topology

    loaded = load_topology(topology, nodes=nodes, slots=slots, on=on)
    _measure(f"audit-{loaded.on}", partial(bench_audit, loaded, runs))


@app.command()
def link(runs: RunsOption = 3) -> None:
    """Bandwidth between two containers by the rate that the topology asks for."""
    from lab.bench.link import bench_link

    _measure("link", partial(bench_link, runs))


@app.command("fan-out")
def fan_out(
    hosts: Annotated[str, typer.Option("--hosts", metavar="N,N", help="How many.")] = "4,16,64",
    runs: RunsOption = 5,
) -> None:
    """`lab exec --all true` on SSH endpoints of this machine, beside xargs ssh, clush and pdsh."""
    from lab.bench.fan_out import bench_fan_out

    _measure("fan-out", partial(bench_fan_out, [int(size) for size in hosts.split(",")], runs))


@app.command()
def deploy(
    hosts: Annotated[int, typer.Option("--hosts", min=1, max=16, help="How many.")] = 4,
    files: Annotated[int, typer.Option("--files", min=1, help="Of the folder, 8 KB each.")] = 500,
    runs: RunsOption = 7,
) -> None:
    """`lab deploy` to SSH endpoints of this machine that have the folder already, beside rsync."""
    from lab.bench.deploy import bench_deploy

    _measure("deploy", partial(bench_deploy, hosts, files, runs))


@app.command("ssh-start")
def ssh_start(runs: RunsOption = 5) -> None:
    """From `lab run` to the end of a first all-reduce, on ssh-lab and in containers."""
    from lab.bench.ssh_start import bench_ssh_start

    _measure("ssh-start", partial(bench_ssh_start, runs))


@app.command()
def ddp(
    topology: TopologyOption = None,
    nodes: NodesOption = None,
    slots: SlotsOption = None,
    on: OnOption = None,
    rate: RateOption = "none",
    runs: RoundsOption = 15,
    only: OnlyOption = None,
    width: WidthOption = None,
    batch: BatchOption = None,
) -> None:
    """Steps of our DistributedDataParallel beside torch's, on the nodes of a topology."""
    from lab.bench.suites import DDP

    options = {"width": width, "batch": batch}
    _bench_on_nodes(DDP, (topology, nodes, slots, on), rate, runs, only, options)


@app.command()
def fsdp(
    topology: TopologyOption = None,
    nodes: NodesOption = None,
    slots: SlotsOption = None,
    on: OnOption = None,
    rate: RateOption = "none",
    runs: RoundsOption = 15,
    only: OnlyOption = None,
    width: WidthOption = None,
    batch: BatchOption = None,
) -> None:
    """Steps and bytes of our FullyShardedDataParallel beside torch's fully_shard."""
    from lab.bench.suites import FSDP

    options = {"width": width, "batch": batch}
    _bench_on_nodes(FSDP, (topology, nodes, slots, on), rate, runs, only, options)


@app.command()
def gpt(
    topology: TopologyOption = None,
    nodes: NodesOption = None,
    slots: SlotsOption = None,
    on: OnOption = None,
    rate: RateOption = "none",
    runs: RoundsOption = 15,
    width: Annotated[int, typer.Option("--width", min=4, help="Of the GPT; by 4.")] = 128,
    batch: Annotated[int, typer.Option("--batch", min=1, help="Windows of 64 per rank.")] = 12,
) -> None:
    """Bytes per second of a small GPT, with ours and torch's DDP and FSDP, on 1, 2, 4... ranks."""
    from lab.bench.suites import GPT

    options: dict[str, int | None] = {"width": width, "batch": batch}
    _bench_on_nodes(GPT, (topology, nodes, slots, on), rate, runs, None, options)


@app.command()
def checkpoint(
    topology: TopologyOption = None,
    nodes: NodesOption = None,
    slots: SlotsOption = None,
    on: OnOption = None,
    runs: RoundsOption = 15,
    only: OnlyOption = None,
    width: WidthOption = None,
    batch: BatchOption = None,
) -> None:
    """How long a training stands still for a checkpoint, written at once or meanwhile."""
    from lab.bench.suites import CHECKPOINT

    options = {"width": width, "batch": batch}
    _bench_on_nodes(CHECKPOINT, (topology, nodes, slots, on), "none", runs, only, options)


@app.command()
def collectives(
    topology: TopologyOption = None,
    nodes: NodesOption = None,
    slots: SlotsOption = None,
    on: OnOption = None,
    rate: RateOption = "none",
    runs: RoundsOption = 15,
    only: OnlyOption = None,
    max_bytes: Annotated[
        int | None, typer.Option("--max-bytes", min=1024, help="The largest message.")
    ] = None,
) -> None:
    """Our collectives by algorithm and size, beside the backend's own."""
    from lab.bench.suites import COLLECTIVES

    options = {"max-bytes": max_bytes}
    _bench_on_nodes(COLLECTIVES, (topology, nodes, slots, on), rate, runs, only, options)


def _bench_on_nodes(
    suite: "Suite",
    where: tuple[str | None, str | None, int | None, str | None],
    rate: str,
    runs: int,
    only: list[str] | None,
    options: dict[str, int | None],
) -> None:
    """Measure a suite; each table is shown and written as soon as it is there."""
    from lab.bench.on_nodes import Plan, machine, plan_sections, run_suite
    from lab.runs.files import write_json
    from lab.topology import load_topology

    topology, nodes, slots, on = where
    loaded = load_topology(topology, nodes=nodes, slots=slots, on=on)
    plan = Plan(plan_sections(suite, only), rate.split(","), runs, options)
    path = Path("outputs") / f"bench-{'-'.join([suite.name, loaded.name, *(only or [])])}.json"
    done: list[dict[str, Any]] = []

    def show(table: dict[str, Any]) -> None:
        done.append(table)
        # First: whoever reads the tables may go before their end.
        write_json(path, {"benchmark": suite.name, "machine": machine(), "tables": done})
        print(
            f"\n{table['title']}: {loaded.name} ({loaded.on}), nodes: {table['nodes']}, "
            f"ranks: {table['world']}, rate: {table['rate']}, rounds: {runs}"
        )
        _print_table(table["rows"])
        for note in table["notes"]:
            print(note)

    with progress_line() as progress:
        run_suite(suite, loaded, plan, progress, show)
    print(f"written to {path}")


def _measure(name: str, bench: Callable[["Progress"], Sequence[dict[str, Any]]]) -> None:
    """Show the rows that it measures as a table, and write outputs/bench-NAME.json with all."""
    from lab.runs.files import write_json

    with progress_line() as progress:
        rows = bench(progress)
    path = Path("outputs") / f"bench-{name}.json"
    write_json(path, rows)  # first, as above
    _print_table(rows)
    print(f"written to {path}")


def _print_table(rows: Sequence[dict[str, Any]]) -> None:
    """Lists are for the JSON alone."""
    from rich.table import Table

    columns = [key for key in rows[0] if not isinstance(rows[0][key], list)]
    table = Table(box=None, pad_edge=False)
    for column in columns:
        table.add_column(column, justify="left" if isinstance(rows[0][column], str) else "right")
    for row in rows:
        table.add_row(*(_cell(row.get(column)) for column in columns))
    print_table(table)


def _cell(value: object) -> str:
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:.0f}" if abs(value) >= 1000 else f"{value:.3g}"
    return str(value)
