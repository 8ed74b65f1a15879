"""What the terminal shows while a run goes on: the ranks' lines with their prefix, progress."""

import json
import os
import sys
import time
from collections.abc import Callable, Container, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TextIO

from lab import interrupts
from lab.cli.output import say, write
from lab.lines import LINE_LIMIT, Lines

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from lab.channel import Progress

COLOURS = (36, 33, 32, 35, 34, 96, 93, 92, 95, 94)
"""ANSI colours of the prefixes, by rank."""
LEAST = 12
"""Columns that the last cell of a row has at least where it is folded."""
UNBOUNDED = 10_000
UPDATE_EVERY = {True: 2.0, False: 60.0}
"""Seconds between two states of a progress bar: on a terminal, and elsewhere."""


def colours_wanted(file: TextIO) -> bool:
    """Whether a stream takes control codes: a terminal, and NO_COLOR is not set."""
    return file.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


class Prefixes:
    """`[rank node] ` for every rank, aligned and coloured by rank."""

    def __init__(self, nodes_of_ranks: Mapping[int, str]) -> None:
        self._nodes = dict(nodes_of_ranks)
        self._rank_width = len(str(max(nodes_of_ranks, default=0)))
        self._node_width = max((len(node) for node in nodes_of_ranks.values()), default=0)

    def place(self, rank: int, node: str) -> None:
        """Tell where a rank is: torchrun may number the nodes as it likes."""
        self._nodes[rank] = node

    def of(self, rank: int, colour: bool) -> str:
        """The prefix of one rank's lines."""
        text = f"[{rank:>{self._rank_width}} {self._nodes[rank]:<{self._node_width}}]"
        if colour:
            text = f"\033[{COLOURS[rank % len(COLOURS)]}m{text}\033[0m"
        return f"{text} "


class RunConsole:
    """Prints the ranks' output as it comes: stdout to stdout, stderr to stderr, whole lines.

    A progress bar's last state is a line; before that, its state now and then (`UPDATE_EVERY`).
    """

    def __init__(
        self,
        prefixes: Prefixes,
        ranks: Container[int] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`ranks`: whose output to print; None: everybody's."""
        self._prefixes = prefixes
        self._ranks = ranks
        self._clock = clock
        self._lines: dict[tuple[int, str], Lines] = {}
        self._updated: dict[tuple[int, str], float] = {}
        self._last_update: dict[tuple[int, str], str] = {}
        self._prompt: TextIO | None = None  # the terminal on which a line waits for its answer

    def log(self, node: str, rank: int, stream: str, text: str) -> None:
        """See `lab.runs.Listener`."""
        del node
        lines = self._lines.setdefault((rank, stream), Lines())
        whole = lines.feed(text)
        if whole:
            self._updated.pop((rank, stream), None)
            self._print(rank, stream, self._unseen(rank, stream, whole))
        if lines.update is not None:
            self._print_update(rank, stream, lines.update)

    def event(self, message: Mapping[str, Any]) -> None:
        """See `lab.runs.Listener`."""
        self._break_prompt()
        if message["type"] == "stop" and message["because"] != "failure" and message["grace"]:
            why = "the time is up (--timeout): " if message["because"] == "timeout" else ""
            if interrupts.is_unread():
                why = "nobody reads the output any more: "
            text = f"ending the ranks, which have {message['grace']:g} s; Ctrl-C ends them at once"
            say(f"lab: {why}{text}")
        if message["type"] == "started":
            self._prefixes.place(message["rank"], message["node"])
        if message["type"] == "restart":
            size = f" with {message['size']}" if "size" in message else ""
            text = f"{message['because']}: beginning again{size}"
            say(f"lab: {text}")
        if message["type"] == "why" and message["because"] == "stall":
            say(f"lab: no rank has made progress for {message['stalled_s']:.0f} s:")
        if message["type"] == "finding" or (
            message["type"] == "why" and message["because"] == "stall"
        ):
            from lab.cli.findings import print_finding
            from lab.diagnose.finding import Finding

            print_finding(Finding.from_json(message["finding"]), sys.stderr)
        if message["type"] == "audit-broken":
            say(f"lab: warning: a check of the audit has failed: {message['what']}")
        if message["type"] == "lost":
            text = f"{message['node']} is lost ({message['message']}); the others go on without it"
            say(f"lab: {text}")
        if message["type"] == "exit":  # whatever it has not ended with a line break
            for stream in ("out", "err"):
                lines = self._lines.pop((message["rank"], stream), None)
                if lines is not None:
                    rest = self._unseen(message["rank"], stream, lines.end())
                    self._print(message["rank"], stream, rest)

    def ask(self, rank: int) -> None:
        """A rank waits for somebody at this terminal: show the line that it has not ended."""
        if not self._shows(rank):
            return
        for stream in ("out", "err"):
            lines = self._lines.get((rank, stream))
            unended = lines.end() if lines is not None and _file(stream).isatty() else []
            if unended:
                self._print(rank, stream, unended, end="")
                self._prompt = _file(stream)

    def answered(self) -> None:
        """Somebody has ended that line; may be called from any thread."""
        self._prompt = None

    def _shows(self, rank: int) -> bool:
        return self._ranks is None or rank in self._ranks

    def _break_prompt(self) -> None:
        if self._prompt is not None:
            write("\n", self._prompt)
            self._prompt = None

    def _print_update(self, rank: int, stream: str, text: str) -> None:
        every = UPDATE_EVERY[_file(stream).isatty()]
        now = self._clock()
        if now - self._updated.setdefault((rank, stream), now) >= every:
            self._updated[rank, stream] = now
            self._print(rank, stream, self._unseen(rank, stream, [text]))
            self._last_update[rank, stream] = text

    def _unseen(self, rank: int, stream: str, lines: list[str]) -> list[str]:
        """The lines without a progress bar's last state, if that is what was shown last."""
        seen = self._last_update.pop((rank, stream), None)
        return lines[1:] if lines[:1] == [seen] else lines

    def _print(self, rank: int, stream: str, lines: list[str], end: str = "\n") -> None:
        if not lines or not self._shows(rank):
            return
        self._break_prompt()
        file = _file(stream)
        prefix = self._prefixes.of(rank, colours_wanted(file))
        write("\n".join(f"{prefix}{line}" for line in lines) + end, file)


def _file(stream: str) -> TextIO:
    return sys.stdout if stream == "out" else sys.stderr


def table_console() -> "Console":
    """Where tables go: cells are never cut, and rows stay rows where no terminal sets a width.

    Brackets in them are brackets: commands and folders may have any.
    """
    from rich.console import Console

    console = Console(markup=False)
    return console if console.is_terminal else Console(markup=False, width=UNBOUNDED)


def print_table(table: "Table") -> None:
    """A table in which words stay whole, ids and names above all: only its last column folds.

    Where that leaves it too little (`LEAST`), rows are as long as they are, and the terminal breaks
    them.
    """
    from rich.console import Console

    *others, last = table.columns
    for column in others:
        column.no_wrap = True
    last.overflow = "fold"
    width = table_console().width
    console = Console(markup=False, width=UNBOUNDED)
    natural = console.measure(table).maximum
    widest = max(console.measure(cell).maximum for cell in last.cells)
    folds = natural - widest + min(widest, LEAST) <= width
    with console.capture() as captured:
        console.print(table, width=width if folds else natural)
    write("".join(f"{line.rstrip()}\n" for line in captured.get()[:-1].split("\n")), sys.stdout)


class JsonConsole:
    """Prints everything that happens as JSON lines, for programs; ranks' output in whole lines."""

    def __init__(self) -> None:
        self._pending: dict[tuple[str, int, str], str] = {}

    def log(self, node: str, rank: int, stream: str, text: str) -> None:
        """See `lab.runs.Listener`."""
        key = node, rank, stream
        whole, line_break, rest = (self._pending.pop(key, "") + text).rpartition("\n")
        if len(rest) > LINE_LIMIT:
            whole, line_break, rest = whole + line_break + rest, "", ""
        if rest:
            self._pending[key] = rest
        self._log(key, whole + line_break)

    def _log(self, key: tuple[str, int, str], text: str) -> None:
        if text:
            node, rank, stream = key
            self._say({"type": "log", "node": node, "rank": rank, "stream": stream, "data": text})

    def event(self, message: Mapping[str, Any]) -> None:
        """See `lab.runs.Listener`."""
        if message["type"] == "exit":  # whatever it has not ended with a line break
            for stream in ("out", "err"):
                key = message["node"], message["rank"], stream
                self._log(key, self._pending.pop(key, ""))
        self._say(message)

    def _say(self, message: Mapping[str, Any]) -> None:
        write(json.dumps({"time": round(time.time(), 6), **message}) + "\n", sys.stdout)


@contextmanager
def progress_line(*, quiet: bool = False) -> Iterator["Progress"]:
    """A progress callback that shows the current step on stderr, unless quiet.

    On a terminal one line with a clock that goes when the work is done; elsewhere a line per step.
    """
    if quiet:
        yield lambda _step: None
        return
    if not colours_wanted(sys.stderr):
        yield lambda step: say(f"lab: {step}")
        return
    from rich.console import Console
    from rich.progress import Progress as Bar
    from rich.progress import SpinnerColumn, TextColumn, TimeElapsedColumn

    text = TextColumn("lab: {task.description}", markup=False)
    columns = (SpinnerColumn(), text, TimeElapsedColumn())
    with Bar(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", visible=False)

        def show(step: str) -> None:
            bar.update(task, description=step, visible=True)

        yield show
