"""`lab doctor`: will it work here?"""

import json
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from lab.cli.console import colours_wanted, progress_line, table_console
from lab.cli.interrupted import nodes_told
from lab.cli.options import (
    BackendOption,
    JsonOption,
    NodesOption,
    OnOption,
    SlotsOption,
    TopologyOption,
)
from lab.cli.output import one_line

if TYPE_CHECKING:
    from rich.table import Table

    from lab.doctor.check import Check
    from lab.doctor.examined import Examined

COLOURS = {"pass": "green", "warn": "yellow", "fail": "red"}
SCHEMA = 1
LARGEST_MATRIX = 8
"""Nodes whose links are shown one by one."""

Show = Callable[[str], None]


def doctor(
    topology: TopologyOption = None,
    nodes: NodesOption = None,
    slots: SlotsOption = None,
    on: OnOption = None,
    backend: BackendOption = None,
    as_json: JsonOption = False,
) -> None:
    """Will it work here? Names, ports, firewalls, links, clocks, software, limits, a roll-call.

    Every node is looked at, speaks with every other, and takes part in an all-reduce. The exit code
    is 1 where a check has failed; a warning does not count.
    """
    from lab.doctor.check import worst
    from lab.doctor.checks import judge
    from lab.doctor.examine import Examination
    from lab.doctor.places import begin
    from lab.topology import load_topology

    loaded = load_topology(topology, nodes=nodes, slots=slots, on=on, backend=backend)
    began = time.monotonic()
    with nodes_told(loaded):
        with progress_line() as progress:
            exam, conversation = begin(loaded, Path.cwd(), progress)
        try:
            with _live(exam, as_json) as show:
                Examination(exam, conversation, show).run()
        finally:
            conversation.close()
    checks = judge(exam)
    status = worst(checks)
    if as_json:
        about = {"topology": loaded.name, "on": loaded.on, "backend": exam.backend}
        seconds = round(time.monotonic() - began, 2)
        print(json.dumps(_as_data(exam, checks) | about | {"status": status, "seconds": seconds}))
    raise typer.Exit(status == "fail")


def _as_data(exam: "Examined", checks: Sequence["Check"]) -> dict[str, Any]:
    return {
        "schema": SCHEMA,
        "nodes": list(exam.names),
        "checks": [check.as_data() for check in checks],
        "links": [
            {"from": one, "to": other, **facts} for (one, other), facts in exam.measured.items()
        ],
    }


@contextmanager
def _live(exam: "Examined", as_json: bool) -> Iterator[Show]:
    """Shows what is done, and the report as it grows where the terminal can; at last all of it."""
    from rich.console import Group
    from rich.live import Live
    from rich.spinner import Spinner

    if as_json or not colours_wanted(sys.stdout):
        with progress_line() as progress:
            yield progress
        if not as_json:
            console = table_console()
            for part in _report(exam):
                console.print(part)
        return
    with Live(console=table_console(), refresh_per_second=10) as live:
        yield lambda step: live.update(Group(*_report(exam), Spinner("dots", f"{step} ...")))
        live.update(Group(*_report(exam)))


def _report(exam: "Examined") -> "list[Table | str]":
    """The checks, a table of the links where they are few, and the sum in a line."""
    from rich.table import Table
    from rich.text import Text

    from lab.doctor.checks import judge

    checks = judge(exam)
    table = Table(box=None, pad_edge=False)
    for column in ("", "CHECK", "FOUND"):
        table.add_column(column, no_wrap=column != "FOUND")
    before = ""
    for check in checks:
        status = Text(check.status, COLOURS[check.status])
        name = check.name if check.name != before else ""
        table.add_row(status, name, one_line(check.found))
        if check.cure is not None:
            table.add_row("", "", Text(f"cure: {one_line(check.cure)}", "dim"))
        before = check.name
    parts: list[Table | str] = [table]
    if exam.measured and 1 < len(exam.names) <= LARGEST_MATRIX:
        parts += ["", _matrix(exam)]
    if exam.is_called:
        parts += ["", _sum(checks)]
    return parts


def _matrix(exam: "Examined") -> "Table":
    from rich.table import Table

    from lab.doctor.checks.links import in_bits

    table = Table(box=None, pad_edge=False)
    table.add_column("FROM \\ TO", no_wrap=True)
    for name in exam.names:
        table.add_column(name, justify="right", no_wrap=True)
    for one in exam.names:
        cells = []
        for other in exam.names:
            facts = exam.measured.get((one, other), {})
            measured = "bandwidth" in facts
            cells.append(
                f"{facts['latency'] * 1e3:.2f} ms, {in_bits(facts['bandwidth'])}"
                if measured
                else "-"
                if one == other
                else "none"
            )
        table.add_row(one, *cells)
    return table


def _sum(checks: Sequence["Check"]) -> str:
    count = {status: sum(check.status == status for check in checks) for status in COLOURS}
    good = "all checks passed" if count["pass"] == len(checks) else ""
    parts = [f"{count['fail']} failed", f"{count['warn']} to look at", f"{count['pass']} passed"]
    return f"lab: {good or ', '.join(parts)}"
