"""Where the time of each step goes: what a rank does itself, and what it waits for others.

A thread that waits for a collective neither runs nor wants to. So of the phases in which there are
collectives, what remains of the time without these two is waiting, whoever issues them.
"""

import _thread
import os
import sys
import threading
import time
from collections import Counter, defaultdict
from pathlib import Path
from types import FrameType
from typing import Any

from torch import nn
from torch.distributed import distributed_c10d
from torch.optim import Optimizer

from ..frames import RANK, is_users
from ..threads import begin
from .collectives import SAME
from .forwards import Forwards, is_training, samples_of
from .hooks import Hooks
from .loaders import Loaders

C10D = str(Path(distributed_c10d.__file__).with_name("c10d_logger.py"))
"""What torch puts around each collective."""
WINDOW = 10
"""Steps of one record."""
WARM_UP = 3
"""Steps at the start that are not like the others."""
TICK = 0.025
"""Seconds between two looks at where the main thread is."""
PLACES = 3
"""The lines that are told of, those where most time goes."""


class Pace:
    """Times the phases of the main thread, step by step."""

    def __init__(self, hooks: Hooks, forwards: Forwards, loaders: Loaders) -> None:
        self._recorder = hooks.recorder
        self._forwards, self._loaders = forwards, loaders
        self._main = threading.main_thread().ident
        self._clock = Clock()
        self._phase: str | None = None
        self._entered = self._clock.now()
        self._exchanged = False
        """Whether there was a collective in this phase."""
        self._step_began = self._clock.now()
        self._data = self._waiting = self._audit = 0.0
        self._times: dict[str, float] = defaultdict(float)
        self._places: Counter[tuple[str, Any, Any, Any]] = Counter()
        self._steps: list[tuple[float, float]] = []
        self._items = 0
        """Samples, or tokens where there are such, that were trained on."""
        self._count = 0
        self._backward: dict[str, Any] = {}
        forwards.before.append(self._on_forward)
        forwards.after.append(lambda *_: self._leave("forward"))
        hooks.before_backward.append(self._on_backward)
        hooks.after_backward.append(lambda *_: self._leave("backward"))
        hooks.before_step.append(lambda *_: self._enter("optimizer"))
        hooks.after_step.append(self._on_step)
        for name in SAME:
            if hasattr(distributed_c10d, name):
                hooks.wrap(distributed_c10d, name, self._on_collective, self._after_collective)
                wrapped = getattr(distributed_c10d, name)
                setattr(sys.modules["torch.distributed"], name, wrapped)
        begin(self._look_on)

    def _on_forward(self, module: nn.Module, inputs: Any) -> None:
        samples = samples_of(inputs)
        if samples and is_training(module):
            tokens = not samples[0].is_floating_point()
            self._items += samples[0].numel() if tokens else samples[0].shape[0]
        self._enter("forward")

    def _on_backward(self, *_: Any) -> None:
        self._backward = self._recorder.site()
        self._enter("backward")

    def _on_collective(self, *_: Any, **__: Any) -> None:
        self._exchanged = True
        if self._phase == "forward" and not self._forwards.in_parts:
            self._forwards.in_parts = _is_called_by_script()
        self._enter("collectives")

    def _after_collective(self, *_: Any, **__: Any) -> None:
        self._leave("collectives")

    def _enter(self, phase: str) -> None:
        if self._phase is None and _thread.get_ident() == self._main:
            self._phase = phase
            self._exchanged = phase != "forward"  # which most often waits for nobody
            self._entered = self._clock.now()

    def _leave(self, phase: str) -> None:
        if self._phase != phase or _thread.get_ident() != self._main:
            return
        self._phase = None
        wall, busy = self._clock.since(self._entered)
        waiting = max(0.0, wall - busy) if self._exchanged else 0.0
        self._waiting += waiting
        self._times[phase] += wall - waiting

    def _on_step(self, optimizer: Optimizer, _: int) -> None:
        self._leave("optimizer")
        wall, delayed = self._clock.since(self._step_began, running=False)
        if self._count >= WARM_UP and not _on_gpu(optimizer):
            audit = self._recorder.sampling.spent - self._audit
            own = max(0.0, wall - delayed - self._waiting - audit)
            self._steps.append((own, self._waiting))
            self._times["data"] += self._loaders.waited - self._data
            if len(self._steps) == WINDOW:
                self._record(optimizer)
        else:
            self._forget()
        self._count += 1
        self._waiting, self._data = 0.0, self._loaders.waited
        self._audit = self._recorder.sampling.spent
        self._step_began = self._clock.now()

    def _record(self, optimizer: Optimizer) -> None:
        self._times["other"] = sum(own for own, _ in self._steps) - sum(self._times.values())
        parameters = (one for group in optimizer.param_groups for one in group["params"])
        self._recorder.record(
            "pace",
            window=(self._count - WARM_UP) // WINDOW,
            own=[own for own, _ in self._steps],
            waiting=[waiting for _, waiting in self._steps],
            phases={name: max(0.0, spent) / WINDOW for name, spent in self._times.items()},
            places=[[*place, count] for place, count in self._places.most_common(PLACES)],
            items=self._items / WINDOW,
            bytes=sum(one.numel() * one.element_size() for one in parameters if one.requires_grad),
            **self._backward,
        )
        self._steps.clear()
        self._forget()

    def _forget(self) -> None:
        self._items = 0
        self._times.clear()
        self._places.clear()

    def _look_on(self) -> None:
        """Look where the main thread is, for ever."""
        while True:
            time.sleep(TICK)
            with self._recorder.sampling.beside:
                self._look()

    def _look(self) -> None:
        frame = sys._current_frames().get(self._main or 0)
        phase = self._phase
        if frame is not None and self._count >= WARM_UP and not (self._exchanged and phase):
            site = self._recorder.site(frame=frame)
            self._places[phase or "other", site["file"], site["line"], site["function"]] += 1


class Clock:
    """Of the main thread: the time, the time it ran, and the time it waited for a processor."""

    def __init__(self) -> None:
        try:
            self._file: int | None = os.open("/proc/thread-self/schedstat", os.O_RDONLY)
        except OSError:  # no Linux: the time it waited is taken as waiting for others
            self._file = None

    def now(self) -> tuple[float, float, float]:
        """Seconds, each since some moment."""
        delayed = 0 if self._file is None else int(os.pread(self._file, 128, 0).split()[1])
        return time.perf_counter(), time.thread_time(), delayed / 1e9

    def since(
        self, then: tuple[float, float, float], *, running: bool = True
    ) -> tuple[float, float]:
        """How long it is, and how much of that it waited for a processor, or had one."""
        wall, ran, delayed = map(float.__sub__, self.now(), then)
        return wall, delayed + ran * running


def _is_called_by_script() -> bool:
    """Whether the script itself calls a collective, and no wrapper does so in its behalf."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename.startswith((*RANK, C10D)):
        frame = frame.f_back
    return frame is not None and is_users(frame.f_code.co_filename)


def _on_gpu(optimizer: Optimizer) -> bool:
    """Whether the work is done elsewhere, while this process waits for nothing."""
    return any(one.is_cuda for group in optimizer.param_groups for one in group["params"])
