"""A scheduler's warning that the job is about to end, and the wish to begin again after it.

The job scripts of `lab render --as sbatch` send SIGUSR2 to every rank some time before the end. Who
then saves, makes the file that LAB_REQUEUE names and ends with 0, begins again. Where a cluster
tells of preemption by SIGTERM alone (GraceTime), that is such a warning as well. torchrun sends it
too, when a node joins: then it begins again by itself, and the file does not count any more.
"""

import os
import signal
import threading
from functools import cache
from pathlib import Path

REQUEUE = "LAB_REQUEUE"
"""A variable: the file by which a job says that it has saved and wants to go on."""
ELASTIC = "TORCHELASTIC_RESTART_COUNT"
LAUNCHERS = {
    ELASTIC: "TORCHELASTIC_RUN_ID",
    "SLURM_RESTART_COUNT": "SLURM_JOB_ID",
}
"""Variables by launcher: how often it has started the job again, and which job it is."""
WARNINGS = (signal.SIGUSR2, signal.SIGTERM)
LOOK_WITHIN = 10.0
"""Seconds after which a warning is noticed at the latest, unless a single step takes longer."""


class Stop:
    """The wish to end early, at a step on which all ranks agree. Use it with `with`.

    Inside, a warning is such a wish. Outside of the main thread Python has no handlers of signals:
    then another rank must hear it.
    """

    def __init__(self, *, most: int, heed_warnings: bool = True) -> None:
        """`most`: after how many steps the ranks tell each other at the latest."""
        self.requested = False
        """On this rank. Set it at any time, in a handler of a signal say."""
        self.agreed = False
        """The same on all ranks."""
        self._file = os.environ.get(REQUEUE) if heed_warnings else None
        self._most = most
        self.look_after = 1 if self._file else most
        """After how many steps the ranks tell each other: often enough for a warning."""

    def __enter__(self) -> "Stop":
        """From now on a warning is heard."""
        self._hears = bool(self._file) and threading.current_thread() is threading.main_thread()
        if self._hears:
            self._on_term = signal.getsignal(signal.SIGTERM)
            for number in WARNINGS:
                signal.signal(number, lambda *_: setattr(self, "requested", True))
        return self

    def __exit__(self, *_: object) -> None:
        if self._hears:
            signal.signal(signal.SIGUSR2, signal.SIG_IGN)  # the end is near anyway
            if not self.agreed:  # else it may come again, before the others have ended as well
                signal.signal(signal.SIGTERM, self._on_term)

    def agree(self, requested: bool, steps: int, seconds: float) -> None:
        """What the ranks have told each other, the same on all of them.

        Args:
            requested: whether one of them wants to stop.
            steps: how many were taken since the last time,
            seconds: in how long, on the slowest rank.
        """
        self.agreed = requested
        if self._file:
            self.look_after = max(1, min(self._most, int(LOOK_WITHIN * steps / seconds)))

    def begin_again(self) -> None:
        """Ask for it, once this process has ended with 0; nothing where no scheduler is."""
        if self._file:
            Path(self._file).touch()


def begun_again(*, is_main: bool) -> list[bool]:
    """By launcher, whether it has started this job before: torchrun or Slurm.

    torchrun does not count what it does because a node joins: that rank 0 knows by the file.
    """
    again = {count: int(os.environ.get(count) or 0) > 0 for count in LAUNCHERS}
    file = os.environ.get(REQUEUE)
    if is_main and file and withdraw(file):
        again[ELASTIC] = True
    return list(again.values())


@cache  # what this process itself asks for stays, whatever it trains next
def withdraw(file: str) -> bool:
    """Take back what the ranks before these have asked for; whether they have.

    The job script has removed the file of an earlier beginning of its own.
    """
    try:
        Path(file).unlink()
    except FileNotFoundError:
        return False
    return True


def job() -> list[str]:
    """By launcher, what it calls this job each time that it starts it; empty: by no name."""
    names = [os.environ.get(name, "") for name in LAUNCHERS.values()]
    return ["" if name == "none" else name for name in names]  # torchrun's, unless it is told one
