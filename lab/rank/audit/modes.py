"""Whether modules that act differently in training (dropout, BatchNorm) train or evaluate."""

import functools
import inspect
import weakref
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from .forwards import Forwards, is_part, weights_digest
from .hooks import Hooks
from .models import Site, is_wrapper, plain

State = tuple[tuple[str, str, bool], ...]
"""Of each of these modules of a model: its name, its class, whether it trains."""

Called = tuple[int, "weakref.ref[nn.Module]", State]
"""The step that is on its way, and a model: what is called, and then dropped, is not kept."""


class Modes:
    """Notes them for the models whose gradients a step takes, as of their last forward."""

    def __init__(self, hooks: Hooks, forwards: Forwards) -> None:
        self._recorder = hooks.recorder
        self._forwards = forwards
        self._called: dict[int, Called] = {}
        """By the identity of a parameter: the last call with gradients, and its step."""
        self._trained: dict[int, Called] = {}
        """Those that a backward came after."""
        self._told: dict[State, int] = {}
        self._step = self._number = 0
        self._evaluated: weakref.WeakKeyDictionary[nn.Module, Site] = weakref.WeakKeyDictionary()
        """Where `eval` was called, the latest last."""
        forwards.before.append(self._on_forward)
        hooks.after_backward.append(self._on_backward)
        hooks.before_step.append(self._on_step)
        hooks.wrap(nn.Module, "eval", before=self._on_eval)

    def _on_eval(self, module: nn.Module) -> None:
        self._evaluated.pop(module, None)
        self._evaluated[module] = self._recorder.site()

    def _on_forward(self, module: nn.Module, _: Any) -> None:
        step = self._recorder.step + 1
        if not torch.is_grad_enabled() or not self._recorder.sampling.due(step):
            return
        trained = next((one for one in module.parameters() if one.requires_grad), None)
        if trained is not None and not self._forwards.in_parts and not is_part(module):
            # Who evaluates with gradients, and trains after it, has the later one count.
            self._called[id(trained)] = step, weakref.ref(module), _state(module)

    def _on_backward(self, _: Any) -> None:
        self._trained |= self._called
        self._called.clear()

    def _on_step(self, _optimizer: Optimizer, count: int) -> None:
        for step, reference, state in self._trained.values():
            module = reference()
            if state and module is not None:
                self._record(step, count, module, state)
        self._trained.clear()
        self._called.clear()

    def _record(self, step: int, count: int, module: nn.Module, state: State) -> None:
        new = None
        if state not in self._told:
            self._told[state] = len(self._told)
            new = {"modules": state, "evaluated": self._where(module)}
        self._number = self._number + 1 if step == self._step else 0
        self._step = step
        self._recorder.record(
            "modes",
            step=step,
            number=self._number,
            count=count,
            weights=weights_digest(module),
            state=self._told[state],
            new=new,
            **self._recorder.site(),
        )

    def _where(self, module: nn.Module) -> Site | None:
        """Where `eval` was called last of all that have to do with a model."""
        own = {id(one) for one in module.modules()}
        sites = [site for one, site in self._evaluated.items() if own & set(map(id, one.modules()))]
        return sites[-1] if sites else None


def _state(module: nn.Module) -> State:
    return tuple(
        (plain(f"{name}.")[:-1], type(one).__name__, one.training)
        for name, one in module.named_modules()
        if _depends(one.__class__) and not is_wrapper(one) and _drops(one)
    )


def _drops(module: nn.Module) -> bool:
    """Whether it is not a dropout of nothing."""
    part = getattr(module, "p", None) if isinstance(module, nn.modules.dropout._DropoutNd) else None
    return not (part == 0 or getattr(module, "dropout", None) == 0)


@functools.cache
def _depends(kind: type[nn.Module]) -> bool:
    """Whether its own code asks if it trains."""
    functions = [
        inspect.unwrap(function)
        for base in kind.__mro__[: kind.__mro__.index(nn.Module)]
        for name, function in vars(base).items()
        if inspect.isfunction(function) and name not in ("train", "eval")
    ]
    return any("training" in function.__code__.co_names for function in functions)
