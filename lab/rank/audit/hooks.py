"""Where the checks of the audit listen: hooks in torch that every script passes through.

They are global, so no script has to be changed, and they compute nothing that the script sees: no
number, no random state, no collective, no order of anything. Imported when torch has been.
"""

import functools
import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch.optim.optimizer import (
    Optimizer,
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from .counts import Counts
from .recorder import Recorder

Listener = Callable[..., None]


class Hooks:
    """What happens in a rank, for those that want to know. Add callables to the lists.

    A listener that raises is left out from then on, which is recorded: the script never notices.
    """

    def __init__(self, recorder: Recorder) -> None:
        self.recorder = recorder
        self.counts = Counts()
        self.before_step: list[Listener] = []
        """Called with (optimizer, count): `Optimizer.step` begins, its count-th time."""
        self.after_step: list[Listener] = []
        """The same, after the parameters have been updated."""
        self.before_backward: list[Listener] = []
        """Called with (tensors,): what backward starts from, most often a loss."""
        self.after_backward: list[Listener] = []
        """Called with (tensors,): gradients are there, averaged where the wrapper does it."""
        self._counts: weakref.WeakKeyDictionary[Optimizer, int] = weakref.WeakKeyDictionary()
        self._stepping: Optimizer | None = None
        self._failed: set[object] = set()
        """Listeners that have raised: their code, where they have some."""

    def tell(self, listeners: list[Listener], *what: Any) -> None:
        """Call all listeners; the time is the audit's."""
        if not listeners:
            return
        with self.recorder.sampling:
            for listener in list(listeners):
                if not self.safely(listener, *what):
                    listeners.remove(listener)

    def safely(self, function: Listener, *arguments: Any, **named: Any) -> bool:
        """Call it, unless it has raised before; whether it has not."""
        what = getattr(function, "__func__", function)  # methods and closures are made anew
        what = getattr(what, "__code__", what)
        if what in self._failed:
            return False
        good = self.recorder.safely(function, *arguments, **named)
        if not good:
            self._failed.add(what)
        return good

    def install(self) -> None:
        """Put the hooks into torch; once, when it has been imported."""
        register_optimizer_step_pre_hook(self._before_step)
        register_optimizer_step_post_hook(self._after_step)
        self.wrap(
            torch.autograd,
            "backward",
            before=lambda tensors, *_, **__: self.tell(self.before_backward, tensors),
            after=lambda tensors, *_, **__: self.tell(self.after_backward, tensors),
        )

    def wrap(
        self,
        owner: Any,
        name: str,
        before: Listener | None = None,
        after: Listener | None = None,
    ) -> None:
        """Have a function of a module or class call listeners with its arguments."""
        function = getattr(owner, name)

        @functools.wraps(function)
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            if torch.compiler.is_compiling():  # what is compiled is as it would be without us
                return function(*args, **kwargs)
            if before is not None:
                self.safely(before, *args, **kwargs)
            result = function(*args, **kwargs)
            if after is not None:
                self.safely(after, *args, **kwargs)
            return result

        setattr(owner, name, wrapped)

    def _before_step(self, optimizer: Optimizer, *_: Any) -> None:
        if self._stepping not in (None, optimizer):
            return  # one that another is made of (ZeRO): what it does is the other's affair
        self._stepping = optimizer
        count = self._counts[optimizer] = self._counts.get(optimizer, 0) + 1
        self.recorder.step = max(self.recorder.step, count)
        self.tell(self.before_step, optimizer, count)

    def _after_step(self, optimizer: Optimizer, *_: Any) -> None:
        if self._stepping is optimizer:
            self._stepping = None
            self.tell(self.after_step, optimizer, self._counts[optimizer])
