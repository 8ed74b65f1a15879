"""`lab ps` and `lab logs`: what is there, and what it said."""

import json
import sys
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lab.cli.console import Prefixes, colours_wanted
from lab.cli.options import JsonOption
from lab.errors import UsageError

if TYPE_CHECKING:
    from lab.runs import RunDirectory

POLL = 0.2
"""Seconds between two looks for new lines."""


def ps(as_json: JsonOption = False) -> None:
    """The labs that are up, and the runs of this folder."""
    from lab.runs import RunDirectory
    from lab.transport.docker import engine_answers, list_labs

    labs = list_labs() if engine_answers() else []
    runs = [
        {"id": run.id, **run.info(), "state": run.state} for run in RunDirectory.all(Path.cwd())
    ]
    if as_json:
        print(json.dumps({"labs": labs, "runs": runs}))
        return
    from rich.console import Console
    from rich.table import Table

    console = Console(soft_wrap=True)
    tables = [
        _table(Table, "LAB", "TOPOLOGY", "NODES", "STATE", "AGE", "FOLDER"),
        _table(Table, "RUN", "ON", "RANKS", "STATE", "EXIT", "AGE", "JOB"),
    ]
    for lab in labs:
        tables[0].add_row(
            lab["id"],
            lab["topology"],
            str(len(lab["nodes"])),
            lab["state"],
            _age(lab["created"]),
            lab["workdir"],
        )
    for run in runs:
        tables[1].add_row(
            run["id"],
            run.get("on", "?"),
            str(run.get("ranks", "?")),
            run["state"],
            str(run.get("exit_code", "")),
            _age(run.get("created")),
            run.get("job", "?"),
        )
    for table, nothing in zip(tables, ("no lab is up", "no runs in this folder"), strict=True):
        console.print(table if table.row_count else nothing)


def _table(kind: Any, *columns: str) -> Any:
    table = kind(box=None, pad_edge=False)
    for column in columns:
        table.add_column(column, overflow="fold", no_wrap=column != "JOB")
    return table


def _age(created: str | None) -> str:
    if not created:
        return "?"
    seconds = int((datetime.now(UTC) - datetime.fromisoformat(created)).total_seconds())
    for size, unit in ((86_400, "d"), (3600, "h"), (60, "m")):
        if seconds >= size:
            return f"{seconds // size}{unit}"
    return f"{max(seconds, 0)}s"


def logs(
    run_id: Annotated[
        str | None,
        typer.Argument(metavar="[RUN]", help="Default: the latest.", show_default=False),
    ] = None,
    rank: Annotated[
        list[int] | None, typer.Option("--rank", help="Only this rank; may be repeated.")
    ] = None,
    follow: Annotated[
        bool, typer.Option("-f", "--follow", help="Go on until the run ends.")
    ] = False,
) -> None:
    """What the ranks of a run wrote: stdout to stdout, stderr to stderr, with their prefixes."""
    from lab.runs import RunDirectory
    from lab.topology import load_topology

    run = RunDirectory.find(Path.cwd(), run_id)
    topology = load_topology(str(run.path / "topology.yaml"))
    places = {place.rank: place.node.name for place in topology.ranks()}
    wanted = rank or sorted(places)
    unknown = [number for number in wanted if number not in places]
    if unknown:
        raise UsageError(
            f"run {run.id} has no rank {unknown[0]}; its ranks are 0-{len(places) - 1}"
        )
    prefixes = Prefixes(places)
    for number, stream, line in _lines(run, places, wanted, follow):
        file = sys.stdout if stream == "out" else sys.stderr
        text = line.decode("utf-8", "replace")
        print(f"{prefixes.of(number, colours_wanted(file))}{text}", file=file, flush=follow)


def _lines(
    run: "RunDirectory", places: dict[int, str], ranks: list[int], follow: bool
) -> Iterator[tuple[int, str, bytes]]:
    """(rank, stream, line) as they are in the files; each rank's in order."""
    from lab.runs import log_path

    offsets = {(rank, stream): 0 for rank in ranks for stream in ("out", "err")}
    while True:
        over = not follow or run.state != "running"  # asked before reading: nothing is missed
        for (rank, stream), offset in offsets.items():
            path = log_path(run, places[rank], rank, stream)
            if not path.is_file():
                continue
            with path.open("rb") as file:
                file.seek(offset)
                for line in file:
                    if not line.endswith(b"\n") and not over:
                        break  # the rest of it is still to come
                    offsets[rank, stream] += len(line)
                    yield rank, stream, line.rstrip(b"\n")
        if over:
            return
        time.sleep(POLL)
