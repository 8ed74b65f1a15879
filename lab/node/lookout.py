"""Whether a rank of a job waits for too long, where no controller watches it (Slurm).

Each rank's task looks at its own rank alone: while the ranks go on, nothing goes over the network
or into files for this. One whose rank has waited for too long has all of them asked and judged, by
a program that the job brings for it; of several that wait, the first to make a folder does.
"""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from lab.node.protocol import Message
from lab.node.questions import ANSWER, FOLDER
from lab.node.stall import PULSES, StallWatch, is_progress

RETRY = 2.0
"""Seconds until the second attempt to be the one who has them asked: another may have ended."""


def beginning(env: Mapping[str, str]) -> str:
    """Tells this beginning of the ranks from those before, in names of files."""
    return "-".join(env.get(f"{name}_RESTART_COUNT", "0") for name in ("SLURM", "TORCHELASTIC"))


class Lookout:
    """Of one rank. Times are of a monotonic clock, but where they are told to others."""

    def __init__(
        self,
        run: Path,
        env: Mapping[str, str],
        wanted: Mapping[str, Any],
        report: Callable[..., None],
    ) -> None:
        """`wanted`: `after`, `stop` and `judge` of `lab.node.task.NODES`; `report`: for events."""
        self._run = run
        self._rank = int(env["RANK"])
        self._claim = run / FOLDER / f"stall-{beginning(env)}"
        self._after = float(wanted["after"])
        self._stops = bool(wanted["stop"])
        self._judge = wanted["judge"]
        self._report = report
        self._watch = StallWatch(self._after, time.monotonic())
        self._asked_at: float | None = None
        self._pulses: deque[dict[str, Any]] = deque(maxlen=PULSES)
        self._last_output: float | None = None
        self._waits = False
        self._has_claim = False
        self._claim_at = 0.0
        self._retry = RETRY
        self._program: subprocess.Popen[bytes] | None = None
        self._is_told = False
        self.wants_end = False
        """Whether the rank is to be ended, since the ranks do not go on."""
        self.is_deaf = False
        """Whether there are hosts that did not answer, and so may not hear of an end either."""

    def on_output(self, data: str) -> None:
        """The rank wrote."""
        self._last_output = time.time()
        if not is_progress(data):
            return
        self._watch.progress(time.monotonic())
        self._go_on()

    def is_due(self) -> bool:
        """Whether the rank is to be asked for a pulse now."""
        now = time.monotonic()
        if self._asked_at is not None or now < self._watch.look_at:
            return False
        self._asked_at = now
        return True

    def on_pulse(self, state: Message) -> None:
        """It has answered."""
        assert self._asked_at is not None
        self._pulses.append({"at": time.time(), **{k: state[k] for k in ("process", "probe")}})
        if self._watch.feed({self._rank: state}, set(), self._asked_at):
            self._go_on()
        self._asked_at = None
        self._waits = self._waits or self._watch.stalled_for(time.monotonic()) is not None

    def step(self) -> None:
        """Have the ranks asked, if it is time to and nobody else does."""
        now = time.monotonic()
        if not self._waits or self._has_claim or now < self._claim_at:
            return
        try:
            self._claim.mkdir(parents=True)
        except OSError:  # another one does; or the disk is full
            # Many may wait for hours, not all in step, and the file system serves everybody.
            self._claim_at = now + self._retry * (0.5 + self._rank % 16 / 32)
            self._retry = min(2 * self._retry, max(RETRY, self._after))
            return
        self._has_claim = True
        argv = [sys.executable, *self._judge, str(self._run), str(self._after)]
        try:
            self._program = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=2)
        except OSError:
            self._begin_anew()
            return
        self._program.returncode = 0  # the task reaps its children itself; Popen must not try

    def on_ended(self, ended: Mapping[int, int]) -> None:
        """Children of the task have ended, by pid: perhaps the program, which has judged then."""
        if self._program is None or self._program.pid not in ended:
            return
        code, self._program = ended[self._program.pid], None
        answer = self._answer() if code == 0 else None
        if answer is None:  # it has failed, and said so
            self._begin_anew()
            return
        finding = answer["finding"]
        self._is_told = True
        self._report(
            "why", rank=self._rank, because="stall", stalled_s=answer["stalled_s"], finding=finding
        )
        if finding["kind"] == "slow":
            self._begin_anew()
        elif self._stops:
            self.wants_end = True
            self.is_deaf = not all(answer["answered"])

    def _answer(self) -> Mapping[str, Any] | None:
        with contextlib.suppress(OSError, ValueError, KeyError):
            told = json.loads((self._run / ANSWER).read_text())
            seen = told["evidence"]
            answered = [node["answered"] for node in seen["nodes"].values()]
            return {**told, "stalled_s": seen["stalled_s"], "answered": answered}
        return None

    def _begin_anew(self) -> None:
        """Have them asked once more, if it lasts."""
        self._watch.progress(time.monotonic())
        self._go_on()

    def _go_on(self) -> None:
        """There is progress."""
        while len(self._pulses) > 1:
            self._pulses.popleft()
        self._waits = False
        self._claim_at, self._retry = 0.0, RETRY
        if self._is_told and not self.wants_end:
            self._is_told = False
            self._report("progress", rank=self._rank)
        self.close()

    def close(self) -> None:
        """Leave it to others: the rank goes on, or has ended."""
        if self._program is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._program.pid, signal.SIGKILL)
            self._program = None
        if self._has_claim and not self.wants_end:  # what follows is our doing: nobody need ask
            self._has_claim = False
            with contextlib.suppress(OSError):
                self._claim.rmdir()

    def to_json(self) -> dict[str, Any]:
        """What it adds to an answer of the rank."""
        return {
            "still_s": self._watch.still_for(time.monotonic()),
            "last_output": self._last_output,
            "pulses": list(self._pulses),
        }
