"""Random numbers: the state that a model draws from, and how data was split by chance."""

import functools
import zlib
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import data

from .forwards import Forwards, is_part, is_training, tensors_of, weights_digest
from .hooks import Hooks

MOST = 64
"""Draws and splits that are noted, each."""


class Noise:
    """Notes the random state before a model drew from it while it was trained (dropout)."""

    def __init__(self, hooks: Hooks, forwards: Forwards) -> None:
        self._recorder = hooks.recorder
        self._forwards = forwards
        self._before: tuple[torch.device, Tensor] | None = None
        self._left = MOST
        self._step = self._number = 0
        forwards.before.append(self._on_forward)
        forwards.after.append(self._on_end)

    def _on_forward(self, module: nn.Module, inputs: Any) -> None:
        self._before = None
        step = self._recorder.step + 1
        whole = not self._forwards.in_parts and is_training(module)
        if self._left and whole and self._recorder.sampling.due(step) and not is_part(module):
            device = next((one.device for one in tensors_of(inputs)), torch.device("cpu"))
            self._before = device, _state(device)

    def _on_end(self, module: nn.Module) -> None:
        if self._before is None:
            return
        device, before = self._before
        if not torch.equal(before, _state(device)):
            self._left -= 1
            step = self._recorder.step + 1
            self._number = self._number + 1 if step == self._step else 0
            self._step = step
            self._recorder.record(
                "noise",
                step=step,
                number=self._number,
                weights=weights_digest(module),
                state=zlib.crc32(before.numpy().tobytes()),
                **self._recorder.site(),
            )


class Splits:
    """Notes what `torch.utils.data.random_split` gave."""

    def __init__(self, hooks: Hooks) -> None:
        self._recorder = hooks.recorder
        self._number = 0
        split = data.random_split

        @functools.wraps(split)
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            parts = split(*args, **kwargs)
            hooks.safely(self._note, parts)
            return parts

        data.random_split = data.dataset.random_split = wrapped

    def _note(self, parts: list[data.Subset[Any]]) -> None:
        self._number += 1
        if self._number <= MOST:
            self._recorder.record(
                "splits",
                number=self._number,
                lengths=[len(part) for part in parts],
                digest=zlib.crc32(repr([list(part.indices) for part in parts]).encode()),
                **self._recorder.site(),
            )


def _state(device: torch.device) -> Tensor:
    """Of the generator that a model on this device draws from."""
    return torch.cuda.get_rng_state(device) if device.type == "cuda" else torch.get_rng_state()
