"""`lab ps` and `lab logs`: what is there, and what it said."""

import codecs
import json
import os
import sys
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from lab.cli.console import Prefixes, colours_wanted, print_table
from lab.cli.jobs import note_ends, say_end, state_in_words
from lab.cli.options import JsonOption, RankOption, RunArgument, chosen_ranks
from lab.cli.output import UNSEEN, one_line, printable, say
from lab.errors import EXIT_INTERRUPTED
from lab.lines import Lines

if TYPE_CHECKING:
    from lab.runs.directory import RunDirectory
    from lab.topology import Topology

LAB_COLUMNS = ("LAB", "TOPOLOGY", "NODES", "STATE", "AGE", "FOLDER")
RUN_COLUMNS = ("RUN", "ON", "NODES", "RANKS", "STATE", "EXIT", "AGE", "JOB")
POLL = 0.2
"""Seconds between two looks for new lines."""
BLOCK = 1 << 16
NEWEST = 20
"""Runs that `lab ps` shows: with the labs above them they fit on a screen."""


def ps(
    everything: Annotated[
        bool, typer.Option("--all", help=f"All runs, not only the newest {NEWEST}.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """The labs that are up, and the newest runs of this folder (with --json: all)."""
    from lab.runs.directory import RunDirectory
    from lab.transport.docker import engine_answers, list_labs

    sees_containers = engine_answers()
    labs = list_labs() if sees_containers else []
    directories = RunDirectory.all(Path.cwd())
    note_ends(directories)
    runs = [{"id": run.id, **run.info(), "state": run.state} for run in directories]
    if as_json:
        print(json.dumps({"labs": labs, "runs": runs}))
        return
    from rich.table import Table

    tables = [
        Table(*LAB_COLUMNS, box=None, pad_edge=False),
        Table(*RUN_COLUMNS, box=None, pad_edge=False),
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
    shown = runs if everything else runs[-NEWEST:]
    for run in shown:
        tables[1].add_row(
            run["id"],
            run.get("on", "?"),
            str(run.get("nodes", "?")),
            str(run.get("ranks", "?")),
            state_in_words(run["state"], run),
            str(run.get("exit_code", "")),
            _age(run.get("created")),
            one_line(run.get("job", "?")),
        )
    no_lab = "no lab is up" + ("" if sees_containers else UNSEEN)
    for table, nothing in zip(tables, (no_lab, "no runs in this folder"), strict=True):
        if table.row_count:
            print_table(table)
        else:
            print(nothing)
    if len(shown) < len(runs):
        say(f"lab: the newest {len(shown)} of {len(runs)} runs; lab ps --all shows all of them")


def _age(created: str | None) -> str:
    if not created:
        return "?"
    seconds = int((datetime.now(UTC) - datetime.fromisoformat(created)).total_seconds())
    for size, unit in ((86_400, "d"), (3600, "h"), (60, "m")):
        if seconds >= size:
            return f"{seconds // size}{unit}"
    return f"{max(seconds, 0)}s"


def logs(
    run_id: RunArgument = None,
    rank: RankOption = None,
    follow: Annotated[
        bool, typer.Option("-f", "--follow", help="Go on until the run ends.")
    ] = False,
    tail: Annotated[
        int | None,
        typer.Option(
            min=0, metavar="N", help="Only the last N lines of each file.", show_default=False
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """What the ranks of a run wrote: stdout to stdout, stderr to stderr, with their prefixes.

    Where they wrote nothing, and where none has begun, how the run ended.
    """
    from lab.runs.directory import RunDirectory
    from lab.topology import load_topology

    run = RunDirectory.find(Path.cwd(), run_id)
    note_ends([run])
    topology = load_topology(str(run.path / "topology.yaml"))
    places = {place.rank: place.node.name for place in topology.ranks()}
    prefixes = Prefixes(places)
    wanted = sorted(chosen_ranks(rank, topology.world_size) or places)
    everywhere = [node.name for node in topology.nodes] if _moves_ranks(run, topology) else None
    files = [
        LogFile(run, node, r, stream, tail)
        for r in wanted
        for node in everywhere or [places[r]]
        for stream in ("out", "err")
    ]
    try:
        _print_lines(run, files, prefixes, follow, as_json)
    except KeyboardInterrupt:  # the way to end it; nothing else is interrupted by that
        raise typer.Exit(EXIT_INTERRUPTED) from None
    if run.state != "running" and not any(source.is_there for source in files):
        say_end(run)


def _print_lines(
    run: "RunDirectory", files: "list[LogFile]", prefixes: Prefixes, follow: bool, as_json: bool
) -> None:
    over = False
    while not over:
        over = not follow or run.state != "running"  # asked before reading: nothing is missed
        for source in files:
            file = sys.stdout if as_json or source.stream == "out" else sys.stderr
            prefixes.place(source.rank, source.node)
            prefix = prefixes.of(source.rank, colours_wanted(file))
            for line in source.lines(over):
                text = source.as_json(line) if as_json else f"{prefix}{line}"
                print(printable(text, file), file=file, flush=follow)
        if not over:
            time.sleep(POLL)
            note_ends([run])


def _moves_ranks(run: "RunDirectory", topology: "Topology") -> bool:
    """Whether torchrun numbers the nodes, so that a rank may be on any of them."""
    least = (run.read_json("job.json") or {}).get("min_nodes") or topology.min_nodes
    return least is not None


class LogFile:
    """One stream of one rank, read as it grows."""

    def __init__(
        self, run: "RunDirectory", node: str, rank: int, stream: str, tail: int | None
    ) -> None:
        from lab.runs.directory import log_path

        self.node = node
        self.rank = rank
        self.stream = stream
        self._path = log_path(run, node, rank, stream)
        self._offset = 0 if tail is None else _tail_offset(self._path, tail)
        self._lines = Lines()
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    @property
    def is_there(self) -> bool:
        """Whether anything was written to it."""
        return self._path.is_file() and self._path.stat().st_size > 0

    def lines(self, over: bool) -> Iterator[str]:
        """The lines since the last call; `over`: nothing follows what is there now."""
        if self._path.is_file():
            with self._path.open("rb") as file:
                file.seek(self._offset)
                while data := file.read(BLOCK):
                    self._offset += len(data)
                    yield from self._lines.feed(self._decoder.decode(data))
        if over:
            yield from self._lines.feed(self._decoder.decode(b"", final=True))
            yield from self._lines.end()

    def as_json(self, line: str) -> str:
        """One of its lines as `lab run --json` prints it, but for the time, which is not kept."""
        where = {"type": "log", "node": self.node, "rank": self.rank, "stream": self.stream}
        return json.dumps({**where, "data": f"{line}\n"})


def _tail_offset(path: Path, lines: int) -> int:
    """Where the last lines of a file begin."""
    if not path.is_file():
        return 0
    with path.open("rb") as file:
        position = end = file.seek(0, os.SEEK_END)
        if lines == 0:
            return end
        wanted = lines
        while position > 0:
            start = max(0, position - BLOCK)
            file.seek(start)
            block = file.read(position - start)
            if position == end and block.endswith(b"\n"):
                wanted += 1  # the last line's own end
            breaks = block.count(b"\n")
            if breaks >= wanted:
                at = len(block)
                for _ in range(wanted):
                    at = block.rindex(b"\n", 0, at)
                return start + at + 1
            wanted -= breaks
            position = start
    return 0
