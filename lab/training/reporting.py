"""What a training says: a table, a progress bar on a terminal, JSON lines, TensorBoard."""

import json
import math
import os
import sys
import time
from collections.abc import Mapping, Sequence, Sized
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import Any

from lab.errors import LabError, UsageError
from lab.training.options import Options
from lab.training.progress import Sums, TrainingProgress
from lab.training.world import World


class Reporter:
    """Says it on rank 0; on other ranks it is silent. Use it with `with`."""

    def __init__(self, options: Options, world: World, columns: Sequence[str], speed: str) -> None:
        """Nothing is written yet.

        Args:
            options: events, tensorboard, steps.
            world: whose rank 0 speaks.
            columns: of the table, between the epoch or step and the speed.
            speed: its unit, such as `samples/s`.
        """
        self._options, self._world = options, world
        self._columns, self._speed = columns, speed
        self._open = ExitStack()
        self._events: Any = None
        self._board: Any = None
        self._bar: Any = None

    def __enter__(self) -> "Reporter":
        """Open what the options ask for. A collective.

        Raises:
            UsageError: TensorBoard is not installed.
            LabError: a file cannot be written.
        """
        self._world.on_main(self._open_files)
        return self

    def _open_files(self) -> None:
        run = os.environ.get("LAB_RUN_DIR")
        path = self._options.events or (Path(run) / "training.jsonl" if run else None)
        if path is not None:
            try:
                path.parent.mkdir(parents=True, exist_ok=True)
                self._events = self._open.enter_context(path.open("a"))
            except OSError as error:
                raise LabError(f"the events' file {path}: {error.strerror}") from error
        if self._options.tensorboard is not None:
            self._board = self._open.enter_context(_tensorboard(self._options.tensorboard))

    def __exit__(self, *_: object) -> None:
        self._open.close()

    def start(self, line: str, done: int, steps: int) -> None:
        """One line on what is trained and how, and the table's head.

        Args:
            line: on what is trained and how.
            done: steps before.
            steps: of the whole training.
        """
        self.event("start", world_size=self._world.size, step=done, **asdict(self._options))
        if self._world.is_main:
            unit = "step" if self._options.steps else "epoch"
            names = "  ".join(f"{name:>8}" for name in self._columns)
            print(f"{line}\n{unit:>5}  {names}  {self._speed:>9}", flush=True)
            self._bar = self._progress_bar(done, steps)

    def row(
        self, progress: TrainingProgress, values: Mapping[str, float], sums: Sums, lr: float
    ) -> None:
        """One line of the table.

        Args:
            progress: says which.
            values: of the columns; what is not there stays empty.
            sums: since the last row.
            lr: the learning rate of the last step.
        """
        per_second = sums.items / sums.seconds if sums.steps else 0.0
        self.event(
            "report",
            step=progress.step,
            epoch=progress.epoch,
            **values,
            lr=lr,
            per_second=per_second,
            step_seconds=sums.seconds / max(1, sums.steps),
        )
        if not self._world.is_main:
            return
        cells = (f"{values[n]:>8.4f}" if n in values else " " * 8 for n in self._columns)
        number = progress.step if self._options.steps else progress.epoch
        line = f"{number:>5}  {'  '.join(cells)}  {per_second:>9.0f}"
        if self._bar is None:
            print(line, flush=True)
        else:
            self._bar.console.print(line, highlight=False)
        if self._board is not None:
            for name, value in (*values.items(), ("lr", lr), (self._speed, per_second)):
                self._board.add_scalar(name, value, progress.step)

    def step(self, step: int) -> None:
        """One step is done: moves the bar."""
        if self._bar is not None:
            self._bar.update(self._bar.task_ids[0], completed=step)

    def end(self, step: int, total: Sums, measured: Mapping[str, float]) -> None:
        """What was measured, if anything.

        Args:
            step: the last.
            total: of all steps.
            measured: see `Measuring.results`.
        """
        step_seconds = total.seconds / max(1, total.steps)
        self.event("end", step=step, step_seconds=step_seconds, **measured)
        if self._world.is_main and measured:
            said = [
                f"{step_seconds * 1000:.1f} ms a step",
                f"communication under way in {measured['communication']:.0%} of the time",
            ]
            if "flops" in measured:
                said.append(
                    f"{measured['flops'] / 1e9:.2f} GFLOP/s a rank, {measured['utilisation']:.1%} "
                    "of a large matrix product's"
                )
            print(f"measured: {', '.join(said)}", flush=True)

    def event(self, event: str, **values: Any) -> None:
        """One JSON line: {"event": ..., "time": seconds since 1970, ...}.

        Numbers that JSON does not have, NaN and infinities, are null.
        """
        if self._events is not None:
            plain = {
                name: None if isinstance(value, float) and not math.isfinite(value) else value
                for name, value in values.items()
            }
            line = json.dumps({"event": event, "time": time.time(), **plain}, default=str)
            self._events.write(line + "\n")
            self._events.flush()

    def say(self, line: str) -> None:
        """A line on stderr, beside the table."""
        if self._world.is_main:
            print(line, file=sys.stderr, flush=True)

    def _progress_bar(self, done: int, steps: int) -> Any:
        """Below the table, where someone looks at it and rich is installed: nodes lack it."""
        if not sys.stdout.isatty():
            return None
        try:
            from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeRemainingColumn
        except ImportError:
            return None
        bar = Progress(BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(), transient=True)
        self._open.enter_context(bar)
        bar.add_task("steps", total=steps, completed=done)
        return bar


def describe(
    what: str, held_out: Sized | None, options: Options, world: World, kind: str, accumulate: int
) -> str:
    """What is trained and how, in a few words.

    Args:
        what: name and number of samples.
        held_out: samples, if any.
        options: batch size and implementation.
        world: the ranks.
        kind: none, ddp, ...
        accumulate: microbatches of a step.
    """
    times = f" x {accumulate}" if accumulate > 1 else ""
    how = "one process" if kind == "none" else f"{kind} ({options.impl}, {world.backend})"
    held = "" if held_out is None else f", {len(held_out)} held out"
    batch = f"{world.size} x batch {options.batch_size}{times}"
    return f"{what}{held}, {batch}, {how}, {world.device.type}"


def _tensorboard(folder: Path) -> Any:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        raise UsageError(
            "--tensorboard needs TensorBoard: pip install 'multinode-lab[tensorboard]'; for nodes "
            "in containers: lab build --requirements FILE"
        ) from None
    try:
        return SummaryWriter(folder)
    except OSError as error:
        raise LabError(f"--tensorboard {folder}: {error.strerror}") from error
