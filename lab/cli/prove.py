"""`lab prove`: N ranks against one process, step by step."""

import sys
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from lab.cli.console import Prefixes, RunConsole, print_verdict
from lab.cli.options import (
    BackendOption,
    JsonOption,
    NodesOption,
    OnOption,
    SlotsOption,
    TopologyOption,
)
from lab.cli.run import execute
from lab.errors import EXIT_FAILURE, LabError, UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.table import Table

    from lab.prove import Report, StepRow

SHOWN = 20
"""Rows of a table; of more, the first and the last half of that."""


class Impl(StrEnum):
    """Whose data parallelism."""

    OURS = "ours"
    TORCH = "torch"
    MINIMAL = "minimal"


class Parallel(StrEnum):
    """What is proven."""

    DDP = "ddp"
    ZERO1 = "zero1"


class AllReduce(StrEnum):
    """In which order the ranks' gradients are added."""

    FLAT = "flat"
    ORDERED = "ordered"


class Optimizer(StrEnum):
    """Adam is what Wine is trained with."""

    ADAM = "adam"
    SGD = "sgd"


def prove(
    topology: TopologyOption = None,
    nodes: NodesOption = None,
    slots: SlotsOption = None,
    on: OnOption = None,
    backend: BackendOption = None,
    steps: Annotated[
        int, typer.Option(min=1, help="Optimiser steps. Rounding adds up over many hundreds.")
    ] = 20,
    parallel: Annotated[Parallel, typer.Option(help="How the ranks share the work.")] = (
        Parallel.DDP
    ),
    impl: Annotated[
        Impl, typer.Option(help="lab.parallel's, PyTorch's, or the one-page MinimalDDP.")
    ] = Impl.OURS,
    all_reduce: Annotated[
        AllReduce, typer.Option(help="Ordered: in rank order, so bitwise equal on any ranks.")
    ] = AllReduce.FLAT,
    bucket_cap_mb: Annotated[
        float, typer.Option(min=0, help="MiB of gradients sent together; 0: each by itself.")
    ] = 25,
    find_unused_parameters: Annotated[
        bool, typer.Option("--find-unused-parameters", help="As DDP's argument.")
    ] = False,
    static_graph: Annotated[
        bool, typer.Option("--static-graph", help="As DDP's argument.")
    ] = False,
    optimizer: Annotated[Optimizer, typer.Option(help="What takes the steps.")] = Optimizer.ADAM,
    batch_size: Annotated[int, typer.Option(min=1, help="Samples per step and rank.")] = 32,
    out: Annotated[
        Path, typer.Option(metavar="FILE", help="Where the report goes as JSON.")
    ] = Path("outputs/ddp-demo.json"),
    as_json: JsonOption = False,
) -> None:
    """Prove that the ranks compute what one process computes.

    Trains the Wine classifier data-parallel on every rank of the topology, then the same in one
    process that accumulates the ranks' batches in rank order, and compares the two after every
    step. Exit code 1 where they are further apart than 1e-6, or the ranks differ among themselves.
    """
    from lab.runs import Job, write_atomically
    from lab.topology import load_topology

    if impl is Impl.MINIMAL and parallel is not Parallel.DDP:
        raise UsageError(f"--impl minimal has no {parallel}")
    buckets = bucket_cap_mb != 25 or find_unused_parameters or static_graph
    if impl is not Impl.OURS and all_reduce is AllReduce.ORDERED:
        raise UsageError(f"--all-reduce ordered is for --impl ours, not for {impl}")
    if impl is Impl.MINIMAL and buckets:
        raise UsageError("--impl minimal has no buckets, and no options for them")
    loaded = load_topology(topology, nodes=nodes, slots=slots, on=on, backend=backend)
    options = {
        "--steps": steps,
        "--parallel": parallel,
        "--impl": impl,
        "--all-reduce": all_reduce,
        "--bucket-cap-mb": bucket_cap_mb,
        "--optimizer": optimizer,
        "--batch-size": batch_size,
        "--backend": loaded.resolved_backend(),
    }
    words = [
        "lab.prove.worker",
        "--quiet",
        *(str(word) for pair in options.items() for word in pair),
        *(["--find-unused-parameters"] if find_unused_parameters else []),
        *(["--static-graph"] if static_graph else []),
    ]
    job = Job.from_command_line(words, module=True, topology=loaded, cwd=Path.cwd())
    console = RunConsole(Prefixes({rank.rank: rank.node.name for rank in loaded.ranks()}))
    print(
        f"lab: {steps} steps on {loaded.world_size} ranks of {loaded.name} ({loaded.on}), "
        "then the same in one process",
        file=sys.stderr,
    )
    # With --json stdout is for one document: what ranks print stays in the run directory.
    controller, verdict = execute(loaded, job, [] if as_json else [console])
    report = _read(controller.directory.path / "prove.json")
    # The worker's exit code must follow from its report: else something else went wrong as well.
    if report is None or verdict.exit_code != (0 if report.ok else EXIT_FAILURE):
        print_verdict(verdict, console)
        raise typer.Exit(verdict.exit_code or EXIT_FAILURE)
    text = report.dumps()
    try:
        write_atomically(out, text)
    except OSError as error:
        raise LabError(f"the report {out} cannot be written: {error.strerror}") from error
    if as_json:
        sys.stdout.write(text)
    else:
        _show(report)
        print(f"lab: the report is in {out}", file=sys.stderr)
    raise typer.Exit(0 if report.ok else EXIT_FAILURE)


def _read(path: Path) -> "Report | None":
    """The report that rank 0 wrote; None where it did not come to that."""
    import json

    from lab.prove import Report

    if not path.is_file():
        return None
    return Report.from_json(json.loads(path.read_text(encoding="utf-8")))


def _show(report: "Report") -> None:
    from rich.console import Console

    from lab.prove.report import BATCH_TOLERANCE

    console = Console(soft_wrap=True, highlight=False)
    console.print(_steps_table(report))
    console.print("|diff|: the largest of all parameters and ranks; checksum: sum of parameters\n")
    console.print(_ranks_table(report))
    console.print(
        "\naveraged gradients against the concatenated batch's: max |difference| "
        f"{report.batch_difference:.1e}, demanded {BATCH_TOLERANCE:.0e}"
    )
    console.print(report.verdict, style="green" if report.ok else "bold red")


def _steps_table(report: "Report") -> "Table":
    one, many = "1 process", f"{report.setting.world_size} ranks"
    return _table(
        (
            "step",
            "epoch",
            f"loss\n{one}",
            f"loss\n{many}",
            f"checksum\n{one}",
            f"checksum\n{many}",
            "gradient\n|diff|",
            "parameter\n|diff|",
            "ranks\nequal",
        ),
        [_step_cells(step, report.setting.tolerance) for step in report.steps],
    )


def _step_cells(step: "StepRow", tolerance: float) -> tuple[str, ...]:
    good = step.within(tolerance)
    cells = (
        str(step.step),
        str(step.epoch),
        f"{step.one_process_loss:.6f}",
        f"{step.ranks_loss:.6f}",
        f"{step.one_process_parameter_sum:.6f}",
        f"{step.ranks_parameter_sum:.6f}",
        f"{step.gradient_difference:.1e}",
        f"{step.parameter_difference:.1e}",
        "yes" if step.ranks_equal else "NO",
    )
    return cells if good else tuple(f"[red]{cell}[/red]" for cell in cells)


def _ranks_table(report: "Report") -> "Table":
    return _table(
        (
            "rank",
            "node",
            "checksum\nat the end",
            "gradient norm\nlast step",
            "gradient\n|diff|",
            "parameter\n|diff|",
        ),
        [
            (
                str(rank.rank),
                rank.node,
                f"{rank.parameter_sum:.6f}",
                f"{rank.gradient_norm:.6f}",
                f"{rank.gradient_difference:.1e}",
                f"{rank.parameter_difference:.1e}",
            )
            for rank in report.ranks
        ],
    )


def _table(columns: "Sequence[str]", rows: "Sequence[tuple[str, ...]]") -> "Table":
    from rich.table import Table

    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0))
    for column in columns:
        table.add_column(column, justify="left" if column == "node" else "right", no_wrap=True)
    for index, row in enumerate(rows):
        if len(rows) > SHOWN and index == SHOWN // 2:
            table.add_row(*["..."] * len(columns))
        if len(rows) <= SHOWN or not SHOWN // 2 <= index < len(rows) - SHOWN // 2:
            table.add_row(*row)
    return table
