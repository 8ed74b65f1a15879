"""The audit inside a rank: hooks that note facts, while the script runs as it would without.

A check has two halves, which share a name:

- a module here with `install(hooks)`. It adds listeners to the lists of `hooks.Hooks`, or wraps
  what it needs with `hooks.wrap`, and calls `hooks.recorder.record(NAME, ...)` with small facts.
  It is imported after the script has imported torch, so it may import torch at its top, and it
  imports its siblings relatively: here, `lab` may be a module of the user's own. What costs more
  than microseconds it does only where `hooks.recorder.sampling.due(count)` says so. Its name goes
  into `CHECKS` below.
- a judge in `lab.diagnose.audit`: a class whose `feed(rank, record)` gets each record of each rank,
  compares them, and returns findings. It goes into the list of judges there.

Start with `LAB_AUDIT=1` in the rank's environment, which `lab run --audit` sets.
"""

import importlib
from typing import Any

from ..events import Events
from ..imports import after_import
from .recorder import Recorder

CHECKS = ("worlds", "replicas", "collectives", "data", "files", "devices")
"""Modules of this package, each a check or a family of them."""


def _install(name: str, hooks: Any) -> None:
    importlib.import_module(f".{name}", __name__).install(hooks)


def start(events: Events) -> Recorder:
    """Begin to audit this process: now, or when its script has imported torch."""
    recorder = Recorder(events)

    def install() -> None:
        from .hooks import Hooks

        hooks = Hooks(recorder)
        hooks.install()
        for name in CHECKS:
            recorder.safely(_install, name, hooks)

    after_import("torch", install)
    return recorder
