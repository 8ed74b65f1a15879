"""What `lab prove` prints."""

from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table

from lab.prove.report import BATCH_TOLERANCE

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lab.prove import Matrix, Report, StepRow

SHOWN = 20
"""Rows of a table; of more, the first and the last half of that."""


def show_report(report: "Report") -> None:
    """One proof: its steps, its ranks, what it cost, the verdict."""
    console = Console(soft_wrap=True, highlight=False)
    console.print(_steps_table(report))
    console.print("|diff|: the largest of all values and ranks; checksum: sum of parameters\n")
    console.print(_ranks_table(report))
    console.print(
        "\nagainst the concatenated batch: gradients' max |diff| "
        f"{report.batch_difference:.1e}, demanded {BATCH_TOLERANCE:.0e}"
    )
    trip = report.round_trip
    came_back = {True: "every bit came back", False: "NOT what it was"}
    console.print(f"parameters flattened, padded, sharded, gathered: {came_back[trip.shards]}")
    if trip.state_dict is not None:
        console.print(f"whole state saved, loaded into shards: {came_back[trip.state_dict]}")
    console.print(f"\na step of {_size(report.memory.model)} of parameters (S), measured:")
    console.print(_costs_table(report))
    if report.memory.unsharded is not None:
        console.print(_unsharded(report))
    _print_verdict(console, report.verdict, report.ok)


def show_matrix(matrix: "Matrix") -> None:
    """Many proofs: a row for each."""
    console = Console(soft_wrap=True, highlight=False)
    head = (
        "proof",
        "must",
        "grad.\n|diff|",
        "param.\n|diff|",
        "optim.\n|diff|",
        "bytes /\nform.",
        "memory\n/ form.",
        "ok",
    )
    console.print(_table(head, [_matrix_cells(report) for report in matrix.reports], bounded=False))
    console.print("must: every bit, or within that part of the largest value; bytes: received")
    console.print("in a step; memory: a rank's parameters, gradients and states; form.: by formula")
    for report in matrix.failed:
        console.print(f"{report.recipe.title}: {report.verdict}", style="red")
    _print_verdict(console, matrix.verdict, matrix.ok)


def _print_verdict(console: Console, verdict: str, ok: bool) -> None:
    console.print(verdict, style="green" if ok else "bold red")


def _matrix_cells(report: "Report") -> tuple[str, ...]:
    ratio = report.wire.ratio
    cells = (
        report.recipe.title,
        "bits" if report.demand.bitwise else f"{report.demand.tolerance:.0e}",
        f"{report.gradient_difference:.1e}",
        f"{report.parameter_difference:.1e}",
        f"{report.optimizer_difference:.1e}",
        "-" if ratio is None else f"{ratio:.2f}",
        f"{report.memory.held / report.memory.expected:.2f}",
        "yes" if report.ok else "NO",
    )
    return cells if report.ok else _red(cells)


def _steps_table(report: "Report") -> Table:
    one, many = "1 process", f"{report.place.world_size} ranks"
    return _table(
        (
            "step",
            f"loss\n{one}",
            f"loss\n{many}",
            f"checksum\n{one}",
            f"checksum\n{many}",
            "gradient\n|diff|",
            "parameter\n|diff|",
            "optimiser\n|diff|",
            "ranks\nequal",
        ),
        [_step_cells(step, step.meets(report.demand)) for step in report.steps],
    )


def _step_cells(step: "StepRow", good: bool) -> tuple[str, ...]:
    cells = (
        str(step.step),
        f"{step.one_process_loss:.6f}",
        f"{step.ranks_loss:.6f}",
        f"{step.one_process_parameter_sum:.6f}",
        f"{step.ranks_parameter_sum:.6f}",
        f"{step.gradient_difference:.1e}",
        f"{step.parameter_difference:.1e}",
        f"{step.optimizer_difference:.1e}",
        "yes" if step.ranks_equal else "NO",
    )
    return cells if good else _red(cells)


def _ranks_table(report: "Report") -> Table:
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


def _costs_table(report: "Report") -> Table:
    wire, memory = report.wire, report.memory
    received: list[int] | list[None] = wire.measured or [None] * len(report.ranks)
    rows = [
        (str(rank), *map(_size, figures))
        for rank, figures in enumerate(
            zip(
                received,
                memory.parameters,
                memory.gradients,
                memory.optimizer,
                memory.held_by_rank,
                memory.peak,
                strict=True,
            )
        )
    ]
    formula = (
        "formula",
        _size(wire.expected),
        "",
        "",
        "",
        _size(memory.expected),
        _size(memory.most),
    )
    head = ("rank", "received", "parameters", "gradients", "optimiser", "together", "peak")
    return _table(head, [*rows, formula])


def _unsharded(report: "Report") -> str | None:
    """FSDP's whole parameters in words."""
    memory = report.memory
    if memory.unsharded is None:
        return None
    return (
        f"whole parameters beside the shards: at most {_size(max(memory.unsharded))}, "
        f"allowed {_size(memory.unsharded_most)}"
    )


def _size(count: int | None) -> str:
    return "-" if count is None else f"{count / 1e6:.3f} MB"


def _red(cells: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(f"[red]{cell}[/red]" for cell in cells)


def _table(
    columns: "Sequence[str]", rows: "Sequence[tuple[str, ...]]", *, bounded: bool = True
) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0))
    for column in columns:
        left = column in ("node", "proof", "must")
        table.add_column(column, justify="left" if left else "right", no_wrap=True)
    some = bounded and len(rows) > SHOWN
    for index, row in enumerate(rows):
        if some and index == SHOWN // 2:
            table.add_row(*["..."] * len(columns))
        if not some or not SHOWN // 2 <= index < len(rows) - SHOWN // 2:
            table.add_row(*row)
    return table
