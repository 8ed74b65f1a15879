"""What a rank says its loss is, and what it was: by the numbers that it prints or logs.

A loss that was averaged over the ranks and one that was not are the same to every hook. But their
values are not: all ranks note their losses, and the judge knows whose number was printed.
"""

import builtins
import logging
import re
import sys
from collections import Counter
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from ..imports import after_import
from .forwards import Forwards, samples_of
from .hooks import Hooks
from .losses import loss_in

GATHERED = 32
"""Losses that are read and recorded in one go: on a GPU each read waits for it."""
SMALL = 4
"""Elements of a tensor that may be a metric."""
MOST = 2000
"""Reports that are noted, and reductions."""
NUMBER = re.compile(r"(?<![\w.])-?\d+\.(\d{2,})(?:e([+-]?\d+))?(?![\w.]*\d)")
"""With at least two decimals."""
TENSORBOARD_DIGITS = 7


class Reports:
    """Notes losses at backward, numbers that are reported, and small tensors that are reduced."""

    def __init__(self, hooks: Hooks, forwards: Forwards) -> None:
        self._hooks, self._recorder = hooks, hooks.recorder
        self._losses: list[tuple[int, Tensor, int]] = []
        self._rows: Counter[int] = Counter()
        """By model, wrapped or not: samples that it has been given."""
        self._before: dict[object, Counter[int]] = {}
        """By line: `_rows` when it last reduced something."""
        self._batch = 0
        self._reductions = 0
        self._reports = 0
        forwards.before.append(self._on_forward)
        hooks.before_backward.append(self._on_backward)
        hooks.recorder.before_close.append(self._flush)
        hooks.wrap(dist.distributed_c10d, "all_reduce", before=self._on_reduce)
        dist.all_reduce = dist.distributed_c10d.all_reduce
        hooks.wrap(builtins, "print", before=self._on_print)
        hooks.wrap(logging.Logger, "handle", before=self._on_log)
        after_import("torch.utils.tensorboard.writer", self._listen_to_tensorboard)

    def _listen_to_tensorboard(self) -> None:
        writer = sys.modules["torch.utils.tensorboard.writer"].SummaryWriter
        self._hooks.wrap(writer, "add_scalar", before=self._on_scalar)

    def _on_forward(self, module: nn.Module, inputs: Any) -> None:
        samples = samples_of(inputs)
        if samples:
            self._batch = samples[0].shape[0]
            self._rows[id(getattr(module, "module", module))] += self._batch

    def _on_backward(self, tensors: Any) -> None:
        loss = loss_in(tensors)
        if loss is not None:
            self._losses.append((self._recorder.step + 1, loss, self._batch))
            if len(self._losses) >= GATHERED:
                self._flush()

    def _on_reduce(self, tensor: Any, *args: Any, **kwargs: Any) -> None:
        small = isinstance(tensor, Tensor) and tensor.numel() <= SMALL
        # On a GPU the values would have to be waited for.
        at_hand = small and tensor.is_floating_point() and tensor.device.type == "cpu"
        if at_hand and self._reductions < MOST:
            self._hooks.tell([self._note_reduction], tensor.detach().flatten().tolist())

    def _note_reduction(self, values: list[float]) -> None:
        site = self._recorder.site()
        line = site["file"], site["line"]
        self._reductions += 1
        since = list((self._rows - self._before.get(line, Counter())).values())
        # Of several models (actor and critic) nobody knows what the number is a mean of.
        rows = since[0] if len(since) == 1 else 0
        self._recorder.record(
            "reductions", number=self._reductions, values=values, rows=rows, **site
        )
        self._before[line] = self._rows.copy()

    def _on_print(self, *values: Any, sep: str | None = " ", file: Any = None, **_: Any) -> None:
        if file in (None, sys.stdout, sys.stderr) and self._reports < MOST:
            text = (" " if sep is None else sep).join(map(str, values))
            self._hooks.tell([self._note], text)

    def _on_log(self, _: Any, record: logging.LogRecord) -> None:
        if self._reports < MOST:
            self._hooks.tell([lambda: self._note(record.getMessage())])

    def _on_scalar(self, _: Any, tag: str, value: Any, *__: Any, **___: Any) -> None:
        if self._reports < MOST:
            self._hooks.tell([lambda: self._note(f"{tag} {float(value):.{TENSORBOARD_DIGITS}g}")])

    def _note(self, text: str) -> None:
        numbers = [
            (float(found[0]), len(found[1]) - int(found[2] or 0)) for found in NUMBER.finditer(text)
        ]
        if numbers:
            self._reports += 1
            self._flush()
            self._recorder.record(
                "reports",
                numbers=numbers[:16],
                reductions=self._reductions,
                **self._recorder.site(),
            )

    def _flush(self) -> None:
        """Read the losses, and record them."""
        if self._losses:
            steps, losses, rows = zip(*self._losses, strict=True)
            self._losses.clear()
            values = torch.stack([loss.to("cpu", torch.float64) for loss in losses]).tolist()
            known = [value if abs(value) < float("inf") else None for value in values]
            self._recorder.record("losses", losses=list(zip(steps, known, rows, strict=True)))
