"""What the terminal shows of a run: the ranks' lines with their prefix, progress, the verdict."""

import json
import os
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TextIO

if TYPE_CHECKING:
    from lab.runs import Verdict
    from lab.transport import Progress

COLOURS = (36, 33, 32, 35, 34, 96, 93, 92, 95, 94)
"""ANSI colours of the prefixes, by rank."""
LINE_LIMIT = 1 << 16
"""Characters of a line after which it is shown as several."""
LAST_LINES = 30
"""How much of the guilty rank's stderr the end of a run repeats."""


def colours_wanted(file: TextIO) -> bool:
    """Whether a stream takes control codes: a terminal, and NO_COLOR is not set."""
    return file.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


class Prefixes:
    """`[rank node] ` for every rank, aligned and coloured by rank."""

    def __init__(self, nodes_of_ranks: Mapping[int, str]) -> None:
        self._nodes = nodes_of_ranks
        self._rank_width = len(str(max(nodes_of_ranks, default=0)))
        self._node_width = max((len(node) for node in nodes_of_ranks.values()), default=0)

    def of(self, rank: int, colour: bool) -> str:
        """The prefix of one rank's lines."""
        text = f"[{rank:>{self._rank_width}} {self._nodes[rank]:<{self._node_width}}]"
        if colour:
            text = f"\033[{COLOURS[rank % len(COLOURS)]}m{text}\033[0m"
        return f"{text} "


class RunConsole:
    """Prints the ranks' output as it comes: stdout to stdout, stderr to stderr, whole lines."""

    def __init__(self, prefixes: Prefixes) -> None:
        self._prefixes = prefixes
        self._partial: dict[tuple[int, str], str] = {}
        self.last_stderr: dict[int, list[str]] = {}
        """The last lines that each rank wrote to stderr."""

    def log(self, node: str, rank: int, stream: str, text: str) -> None:
        """See `lab.runs.Listener`."""
        del node
        pending = self._partial.pop((rank, stream), "") + text
        *lines, rest = pending.split("\n")
        if len(rest) > LINE_LIMIT:
            lines, rest = [*lines, rest], ""
        if rest:
            self._partial[rank, stream] = rest
        self._print(rank, stream, lines)

    def event(self, message: Mapping[str, Any]) -> None:
        """See `lab.runs.Listener`."""
        if message["type"] == "exit":  # whatever it has not ended with a line break
            for stream in ("out", "err"):
                rest = self._partial.pop((message["rank"], stream), "")
                if rest:
                    self._print(message["rank"], stream, [rest])

    def _print(self, rank: int, stream: str, lines: list[str]) -> None:
        if not lines:
            return
        file = sys.stdout if stream == "out" else sys.stderr
        prefix = self._prefixes.of(rank, colours_wanted(file))
        text = "".join(f"{prefix}{line}\n" for line in lines)
        file.write(text.encode("utf-8", "surrogateescape").decode("utf-8", "replace"))
        file.flush()
        if stream == "err":
            kept = self.last_stderr.get(rank, []) + lines
            self.last_stderr[rank] = kept[-LAST_LINES:]


class JsonConsole:
    """Prints everything that happens as JSON lines, for programs."""

    def log(self, node: str, rank: int, stream: str, text: str) -> None:
        """See `lab.runs.Listener`."""
        self.event({"type": "log", "node": node, "rank": rank, "stream": stream, "data": text})

    def event(self, message: Mapping[str, Any]) -> None:
        """See `lab.runs.Listener`."""
        print(json.dumps({"time": round(time.time(), 6), **message}), flush=True)


def print_verdict(verdict: "Verdict", console: RunConsole) -> None:
    """The end of a run on stderr: what failed and how, the guilty rank's last words last."""
    error = sys.stderr
    if verdict.kind == "ok":
        print(f"lab: {verdict.summary}", file=error)
        return
    first = verdict.first
    if first is None:
        print(f"lab: {verdict.summary}; all ranks have ended", file=error)
        return
    others = []
    if verdict.victims:
        others.append(f"{_ranks(verdict.victims)} failed as a consequence")
    if verdict.ended:
        others.append(f"{_ranks(verdict.ended)} ended by lab")
    if others:
        print(f"lab: {'; '.join(others)}", file=error)
    colour = colours_wanted(error)
    words = first.traceback.rstrip().splitlines() if first.traceback else []
    words = words or console.last_stderr.get(first.rank, [])
    if words:
        node = f"rank {first.rank} on {first.node}"
        print(f"lab: the last words of {node}:", file=error)
        for word in words[-LAST_LINES:]:
            print(f"  {word}", file=error)
    red, reset = ("\033[31m", "\033[0m") if colour else ("", "")
    print(f"{red}lab: {first} (exit code {verdict.exit_code}){reset}", file=error)


def _ranks(ranks: tuple[int, ...]) -> str:
    shown = ", ".join(str(rank) for rank in ranks[:8])
    more = f", ... ({len(ranks)} in all)" if len(ranks) > 8 else ""
    return f"rank{'s' * (len(ranks) > 1)} {shown}{more}"


@contextmanager
def progress_line() -> Iterator["Progress"]:
    """A progress callback that shows the current step on stderr.

    On a terminal one line with a clock that goes when the work is done; elsewhere a line per step.
    """
    if not colours_wanted(sys.stderr):
        yield lambda step: print(f"lab: {step}", file=sys.stderr, flush=True)
        return
    from rich.console import Console
    from rich.progress import Progress as Bar
    from rich.progress import SpinnerColumn, TextColumn, TimeElapsedColumn

    columns = (SpinnerColumn(), TextColumn("lab: {task.description}"), TimeElapsedColumn())
    with Bar(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", visible=False)

        def show(step: str) -> None:
            bar.update(task, description=step, visible=True)

        yield show
