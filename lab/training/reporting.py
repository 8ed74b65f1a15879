"""What a training says: a table, a progress bar on a terminal, JSON lines, TensorBoard."""

import json
import os
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from lab.errors import LabError, UsageError
from lab.training.options import Options


class Reporter:
    """Says it on rank 0; on other ranks it is silent. Close it at the end."""

    def __init__(self, options: Options, *, main: bool, unit: str, columns: Sequence[str]) -> None:
        """Open what the options ask for.

        Args:
            options: events, tensorboard.
            main: whether this rank speaks.
            unit: of the table's first column, `epoch` or `step`.
            columns: of the table, between the unit and the speed.

        Raises:
            UsageError: TensorBoard is not installed.
            LabError: a file cannot be written.
        """
        self.main = main
        self.unit = unit
        self.columns = columns
        self.open = ExitStack()
        self._events: Any = None
        self._board: Any = None
        self._bar: Any = None
        if not main:
            return
        run = os.environ.get("LAB_RUN_DIR")
        path = options.events or (Path(run) / "training.jsonl" if run else None)
        try:
            if path is not None:
                path.parent.mkdir(parents=True, exist_ok=True)
                self._events = self.open.enter_context(path.open("a"))
        except OSError as error:
            raise LabError(f"{path} cannot be written: {error.strerror}") from error
        if options.tensorboard is not None:
            self._board = self.open.enter_context(_tensorboard(options.tensorboard))

    def start(self, line: str, speed: str, steps: int, done: int) -> None:
        """One line on what is trained and how, and the table's head.

        Args:
            line: on what is trained and how.
            speed: its unit, such as `samples/s`.
            steps: of the whole training.
            done: of them before.
        """
        if self.main:
            self.speed = speed
            names = "  ".join(f"{name:>8}" for name in self.columns)
            print(f"{line}\n{self.unit:>5}  {names}  {speed:>9}", flush=True)
            self._bar = self._progress_bar(steps, done)

    def row(self, number: int, step: int, values: Mapping[str, float], speed: float) -> None:
        """One line of the table.

        Args:
            number: of the epoch or the step.
            step: of the optimiser.
            values: of the columns; what is not there stays empty.
            speed: per second.
        """
        if not self.main:
            return
        cells = (f"{values[name]:>8.4f}" if name in values else " " * 8 for name in self.columns)
        line = f"{number:>5}  {'  '.join(cells)}  {speed:>9.0f}"
        if self._bar is not None:
            self._bar.console.print(line, highlight=False)
        else:
            print(line, flush=True)
        for name, value in values.items() if self._board is not None else ():
            self._board.add_scalar(name, value, step)

    def step(self, step: int) -> None:
        """One step is done: moves the bar."""
        if self._bar is not None:
            self._bar.update(self._bar.task_ids[0], completed=step)

    def event(self, event: str, **values: Any) -> None:
        """One JSON line: {"event": ..., "time": seconds since 1970, ...}."""
        if self._events is not None:
            line = json.dumps({"event": event, "time": time.time(), **values}, default=str)
            self._events.write(line + "\n")
            self._events.flush()

    def say(self, line: str) -> None:
        """A line on stderr, which is not the table's."""
        if self.main:
            print(line, file=sys.stderr, flush=True)

    def _progress_bar(self, steps: int, done: int) -> Any:
        """A bar below the table, where someone looks at it and rich is there (nodes lack it)."""
        if not sys.stdout.isatty():
            return None
        try:
            from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeRemainingColumn
        except ImportError:
            return None
        bar = Progress(BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(), transient=True)
        self.open.enter_context(bar)
        bar.add_task("steps", total=steps, completed=done)
        return bar


def _tensorboard(folder: Path) -> Any:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        raise UsageError(
            "--tensorboard needs TensorBoard: pip install tensorboard, "
            "on the nodes as well (lab build --requirements)"
        ) from None
    return SummaryWriter(folder)
