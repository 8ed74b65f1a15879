"""What the parameters of each optimizer are at a step, in a few numbers for each tensor."""

import weakref
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from .hooks import Hooks


def install(hooks: Hooks) -> None:
    """Look at the optimizers' parameters around their steps."""
    watch = Weights(hooks)
    hooks.before_step.append(watch.before_step)


class Weights:
    """Notes the layout of each optimizer once, then digests of its tensors at the due steps."""

    def __init__(self, hooks: Hooks) -> None:
        self._recorder = hooks.recorder
        self._numbers: weakref.WeakKeyDictionary[Optimizer, int] = weakref.WeakKeyDictionary()

    def before_step(self, optimizer: Optimizer, count: int) -> None:
        """See `Hooks.before_step`."""
        if optimizer not in self._numbers:
            self._numbers[optimizer] = len(self._numbers)
        number = self._numbers[optimizer]
        if count > 1:
            return
        tensors = [p for group in optimizer.param_groups for p in group["params"]]
        self._recorder.record(
            "start",
            optimizer=number,
            shapes=[list(p.shape) for p in tensors],
            digests=[digest(p) for p in tensors],
            **self._recorder.site(),
        )


def digest(tensor: Tensor) -> int:
    """32 bits that are equal where the tensor's bits are."""
    data = tensor.detach().contiguous().flatten().view(torch.uint8)
    whole = data.numel() // 8 * 8
    total = int(data[:whole].view(torch.int64).sum()) if whole else 0
    rest: Any = data[whole:].tolist()
    folded = (total ^ int.from_bytes(bytes(rest), "little")) & (1 << 64) - 1
    return (folded ^ folded >> 32) & 0xFFFFFFFF
