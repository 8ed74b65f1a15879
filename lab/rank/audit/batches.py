"""What each rank trains on: digests of the samples that its model is given."""

from typing import Any

from torch import nn

from ..groups import sequence_numbers
from .forwards import Forwards, is_part, is_training, samples_of, weights_digest
from .hooks import Hooks
from .loaders import Loaders
from .rows import row_digests
from .tensors import packed_digests

MOST = 256
"""Samples of a batch that are looked at."""


class Batches:
    """Notes the rows of the first forward of each microbatch."""

    def __init__(self, hooks: Hooks, forwards: Forwards, loaders: Loaders) -> None:
        self._recorder = hooks.recorder
        self._forwards, self._loaders = forwards, loaders
        self._step = 0
        self._microbatch = 0
        self._sent = 0
        """Collectives there had been at the forward before."""
        self._fresh = True
        """Whether no model has been called since the last backward."""
        forwards.before.append(self._on_forward)
        hooks.after_backward.append(self._on_backward)

    def _on_backward(self, *_: Any) -> None:
        self._fresh = True

    def _on_forward(self, module: nn.Module, inputs: Any) -> None:
        if not self._fresh or not is_training(module):
            return
        self._fresh = False
        sent = sum(sequence_numbers().values())
        exchanged, self._sent = sent != self._sent, sent
        step = self._recorder.step + 1
        self._microbatch = self._microbatch + 1 if step == self._step else 0
        self._step = step
        if not self._recorder.sampling.due(step):
            return
        tensors = samples_of(inputs)
        if not tensors or not tensors[0].shape[0]:
            return
        if self._forwards.in_parts or is_part(module):
            return
        rows = row_digests([one[:MOST] for one in tensors])
        self._recorder.record(
            "batches",
            step=step,
            microbatch=self._microbatch,
            count=tensors[0].shape[0],
            rows=packed_digests(rows),
            weights=weights_digest(module),
            exchanged=exchanged,
            share=self._loaders.last_share,
            **(self._loaders.last_site or self._recorder.site()),
        )
