"""What the audit notes in a rank, on its way to the agent; and how much of the time it may take."""

import _thread
import os
import sys
import time
import traceback
from collections import deque
from collections.abc import Callable
from types import FrameType
from typing import Any

from ..events import Events, encoded
from ..frames import is_users, shown
from ..threads import begin

SHARE = 0.03
"""Of what the rank has computed since its first step: what the audit may take."""
ALLOWANCE = 0.1
"""Seconds on top: short runs are looked at step by step."""
PAUSE = 0.1
"""Seconds in which records gather before they are written."""
LONGEST = 500_000
"""Bytes of one record; what is longer would not be read."""
START_FOLDER = os.getcwd()  # noqa: PTH109 - as `shown` takes it


class Recorder:
    """Takes records from the hooks and hands them to the agent in the background.

    Nothing is exchanged between ranks: each notes small facts about itself, and the controller
    compares them. In processes that the rank forks (loaders of data) it takes nothing.
    """

    def __init__(self, events: Events) -> None:
        self.step = 0
        """The optimizer step that is on its way, from 1; 0 before the first has begun to count.

        It goes on after `Optimizer.step`; of several optimizers the one with most steps counts."""
        self.sampling = Sampling()
        self._events = events
        self._records: deque[dict[str, Any]] = deque()
        self._some = _thread.allocate_lock()
        """Held while there is nothing to write."""
        self._some.acquire()
        self._writing = _thread.allocate_lock()
        self._on = True
        self._too_long: set[str] = set()
        """Checks of which records were lost."""
        self.before_close: list[Callable[[], None]] = []
        """Called when the script has ended, by those that have something left to record."""
        os.register_at_fork(after_in_child=self._leave)
        begin(self._write_on)

    def record(self, check: str, **fields: Any) -> None:
        """Note a fact for the judges of `lab.diagnose.audit` that take records of this check.

        Args:
            check: what the record is about.
            fields: what JSON can hold; `step` is added unless it is among them.
        """
        if not self._on:
            return
        self._records.append({"check": check, "step": self.step, **fields})
        if self._some.locked():
            self._some.release()

    @staticmethod
    def site(
        beyond: Callable[[FrameType], bool] | None = None, frame: FrameType | None = None
    ) -> dict[str, Any]:
        """`file`, `line`, `function` of the script's own frame that led here; all None without.

        The innermost of the user's frames; `beyond`: of those for which it is false; `frame`: to
        begin with, of another thread.
        """
        frame = frame or sys._getframe(1)
        while frame is not None:
            file = frame.f_code.co_filename
            if is_users(file) and not (beyond is not None and beyond(frame)):
                function = frame.f_code.co_name
                return {
                    "file": shown(file, START_FOLDER),
                    "line": frame.f_lineno,
                    "function": None if function == "<module>" else function,
                }
            frame = frame.f_back
        return {"file": None, "line": None, "function": None}

    def close(self) -> None:
        """Write what is left."""
        for gather in self.before_close:
            self.safely(gather)
        self.write()

    def safely(self, function: Callable[..., Any], *arguments: Any, **named: Any) -> bool:
        """Call it; False where it raised: ours must not end the user's training."""
        try:
            function(*arguments, **named)
        except Exception as error:  # noqa: BLE001 - whatever it is, the controller is told
            name = getattr(function, "__qualname__", repr(function))
            trace = traceback.format_exc()[-2000:]
            self.record("broken", what=f"{name}: {error!r}", traceback=trace)
            return False
        return True

    def write(self) -> None:
        """Write what has gathered, now: before something that may never return."""
        with self._writing:
            while self._on and self._records:
                record = self._records.popleft()
                message = encoded(type="audit", record=record)
                if len(message) < LONGEST:
                    self._events.write(message)
                elif record["check"] not in self._too_long:
                    self._too_long.add(record["check"])
                    what = f"{record['check']}: records of more than {LONGEST} bytes are lost"
                    self._records.append({"check": "broken", "step": record["step"], "what": what})

    def _write_on(self) -> None:
        while True:
            self._some.acquire()
            time.sleep(PAUSE)
            with self.sampling.beside:
                self.write()

    def _leave(self) -> None:
        self._on = False


class Sampling:
    """Which steps are looked at: all as long as they are cheap, then every second, fourth, ...

    Ranks decide without each other. What they look at can be compared all the same, since each
    interval is a power of two: a step of one rank's longer interval is one of the others' as well.
    """

    def __init__(self, clock: Callable[[], float] = time.thread_time) -> None:
        """`clock` counts what this thread computes, since others use the processor as well."""
        self._clock = clock
        self._spent = 0.0
        self._began: float | None = None
        self._every = 1
        self._step = -1
        self._due = False
        self._own = _thread._local()
        self._own.depth = 0
        self.beside = Beside(clock)
        """Time of the audit's own threads, which count as well: `with sampling.beside: ...`."""

    @property
    def spent(self) -> float:
        """Seconds that the audit has computed so far in the script's threads."""
        return self._spent

    def due(self, step: int) -> bool:
        """Whether to look at this step; the same for all that ask about it in turn."""
        if step == self._step:
            return self._due
        self._step = step
        now = self._clock()
        if self._began is None:
            self._began = now
        allowed = ALLOWANCE + SHARE * (now - self._began)
        self._due = step % self._every == 0
        spent = self._spent + self.beside.spent
        if self._due and spent > allowed:
            self._every *= 2
            self._due = step % self._every == 0
        elif self._due and self._every > 1 and spent < allowed / 2:
            self._every //= 2
        return self._due

    def __enter__(self) -> None:
        """Time from here to the end of the `with` is the audit's own."""
        depth = self._own.depth = getattr(self._own, "depth", 0) + 1  # autograd has threads, too
        if depth == 1:
            self._own.entered = self._clock()

    def __exit__(self, *_: object) -> None:
        self._own.depth -= 1
        if self._own.depth == 0:
            self._spent += self._clock() - self._own.entered


class Beside:
    """What the audit's own threads have computed, each by itself."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._own = _thread._local()
        self._by_thread: dict[int, float] = {}

    @property
    def spent(self) -> float:
        """Seconds of all of them."""
        return sum(list(self._by_thread.values()))

    def __enter__(self) -> None:
        self._own.entered = self._clock()

    def __exit__(self, *_: object) -> None:
        thread = _thread.get_ident()
        spent = self._clock() - self._own.entered
        self._by_thread[thread] = self._by_thread.get(thread, 0.0) + spent
