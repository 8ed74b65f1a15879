"""A scheduler's warning that the job is about to end, and the wish to begin again after it.

The job scripts of `lab render --as sbatch` send SIGUSR2 to every rank some time before the end. Who
then saves, makes the file that LAB_REQUEUE names and ends with 0, begins again.
"""

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

REQUEUE = "LAB_REQUEUE"
"""A variable: the file by which a job says that it has saved and wants to go on."""
LOOK_WITHIN = 10.0
"""Seconds after which a warning is noticed at the latest, unless a single step takes longer."""


def can_come() -> bool:
    """Whether a scheduler would warn this process."""
    return bool(os.environ.get(REQUEUE))


@contextmanager
def on_warning(act: Callable[[], None]) -> Iterator[None]:
    """Call `act` when the warning comes; afterwards it is ignored, since the end is near anyway.

    Outside of the main thread Python has no handlers: then another rank must hear it.
    """
    if can_come() and threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGUSR2, lambda *_: act())
        try:
            yield
        finally:
            signal.signal(signal.SIGUSR2, signal.SIG_IGN)
    else:
        yield


def look_after(steps: int, seconds: float, most: int) -> int:
    """After how many steps ranks should tell each other whether one of them was warned.

    Args:
        steps: how many were taken,
        seconds: in how long, on the slowest rank: the same number on all ranks.
        most: how many at the most, and where no warning can come.
    """
    return max(1, min(most, int(LOOK_WITHIN * steps / seconds))) if can_come() else most


def begin_again() -> None:
    """Ask for it, once this process has ended with 0. Nothing where no scheduler would do so."""
    if can_come():
        Path(os.environ[REQUEUE]).touch()


def has_begun_again() -> bool:
    """Whether a launcher has started this job before: torchrun after a failure, or Slurm."""
    counts = ("TORCHELASTIC_RESTART_COUNT", "SLURM_RESTART_COUNT")
    return any(int(os.environ.get(name) or 0) > 0 for name in counts)
