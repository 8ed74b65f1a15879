"""What an exercise works with on each rank: a notebook for what it measures, and `main`.

def exercise(notebook: Notebook) -> None:
    notebook.expect("sum over the ranks", measured, theory)

if __name__ == "__main__":
    sys.exit(main(exercise))
"""

import gc
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from statistics import median
from typing import Any, TypeVar

import torch
import torch.distributed as dist

from lab.bench.workers.harness import Bench
from lab.errors import EXIT_FAILURE
from lab.lessons.report import Finding, Report
from lab.training.world import World, join_world

T = TypeVar("T")
TIMEOUT = timedelta(seconds=120)
"""Of each collective: a lesson that hangs must end."""


@dataclass
class Notebook:
    """What one lesson finds. All methods are collectives: every rank calls them, in one order.

    Rank 0 prints what is written; the report at the end holds the findings.
    """

    world: World
    findings: list[Finding] = field(default_factory=list)

    def say(self, *lines: str) -> None:
        """Print on rank 0."""
        if self.world.is_main:
            print("\n".join(lines), flush=True)

    def table(self, columns: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
        """Print rows of words and numbers on rank 0, in columns."""
        cells = [list(columns), *([_cell(value) for value in row] for row in rows)]
        widths = [max(len(row[column]) for row in cells) for column in range(len(columns))]
        for row in cells:
            first, *others = (
                (text.rjust if column else text.ljust)(width)
                for column, (text, width) in enumerate(zip(row, widths, strict=True))
            )
            self.say("  ".join([first, *others]).rstrip())

    def expect(self, what: str, measured: object, theory: object) -> None:
        """`measured` is equal to `theory`, on every rank."""
        self.judge(what, measured == theory, measured, theory)

    def expect_at_most(self, what: str, measured: float, bound: float) -> None:
        """`measured` is at most `bound`, on every rank; the largest is shown."""
        holds = measured <= bound  # NaN is not
        self.judge(what, holds, max(self.gather(measured)), f"at most {_cell(bound)}")

    def judge(self, what: str, holds: bool, measured: object, theory: object) -> None:
        """`holds` is true on every rank; `measured` and `theory` are rank 0's words for it."""
        everywhere = self.gather(bool(holds))
        words = _cell(measured)
        if False in everywhere and everywhere[0]:
            others = ", ".join(str(rank) for rank, held in enumerate(everywhere) if not held)
            words += f" on rank 0, but not so on {others}"
        self._write(Finding(what, words, _cell(theory), all(everywhere)))

    def show(self, what: str, measured: object, theory: object) -> None:
        """Something to see and not to judge: a time, which depends on the machine."""
        self._write(Finding(what, _cell(measured), _cell(theory), None))

    def gather(self, value: T) -> list[T]:
        """Every rank's value, by rank."""
        values: list[Any] = [None] * self.world.size
        dist.all_gather_object(values, value)
        return values

    def seconds(self, calls: Mapping[str, Callable[[], object]], runs: int = 5) -> dict[str, float]:
        """Of each call, the median on the slowest rank. They take turns: see `Bench.measure`."""
        taken = _QuietBench(self.world).measure(calls, runs)
        return {name: median(times) for name, times in taken.items()}

    def _write(self, finding: Finding) -> None:
        self.findings.append(finding)
        self.say(str(finding))


Exercise = Callable[[Notebook], None]


class _QuietBench(Bench):
    def say(self, text: str) -> None:
        """Rounds are not what a lesson is about."""


def perform(exercise: Exercise, world: World) -> Report:
    """Do an exercise, from the same random numbers whatever was done before. A collective."""
    torch.manual_seed(0)
    notebook = Notebook(world)
    began = time.monotonic()
    exercise(notebook)
    gc.collect()  # models that are left in cycles hold their process group beyond its end
    seconds = time.monotonic() - began
    found = tuple(notebook.findings)
    return Report(world.size, world.backend, torch.__version__, round(seconds, 3), found)


def main(exercise: Exercise) -> int:
    """Do one exercise as one of the ranks that the environment says, whoever started them.

    Returns:
        The exit code; on rank 0 it is 1 where something was not as theory says.
    """
    with ranks() as world:
        report = perform(exercise, world)
    return EXIT_FAILURE if world.is_main and not report.ok else 0


@contextmanager
def ranks(backend: str = "auto") -> Iterator[World]:
    """All ranks, each with one thread: it stands for a machine, and here they share the cores."""
    torch.set_num_threads(1)
    with join_world(backend, group_of_one=True, timeout=TIMEOUT) as world:
        yield world


def _cell(value: object) -> str:
    """Words as they are, numbers as people read them."""
    return f"{value:.4g}" if isinstance(value, float) else str(value)
