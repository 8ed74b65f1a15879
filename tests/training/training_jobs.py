"""Small trainings for tests: what a run did, step by step, to be compared with another's."""

import contextlib
import io
import json
import os
import signal
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from lab.parallel import FullyShardedDataParallel
from lab.training.classification import classification_loss, correct
from lab.training.options import Options
from lab.training.order import Samples
from lab.training.trainer import Trainer
from lab.training.world import join_world

SAMPLES = 48
WRAPPERS = [
    ("ddp", "ours"),
    ("ddp", "torch"),
    ("ddp", "minimal"),
    ("fsdp", "ours"),
    ("fsdp", "torch"),
    ("zero1", "ours"),
    ("zero1", "torch"),
    ("zero2", "ours"),
]
"""How the ranks may share the work, and whose."""


class Offset(nn.Module):
    """Adds its weight times what comes behind the six features, as long as that is nothing: 0."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(6))

    def forward(self, inputs: Tensor) -> Tensor:
        return inputs[:, :6] + self.weight * inputs[:, 6:].sum(dim=1, keepdim=True)


class Net(nn.Sequential):
    """Two layers, with dropout if wanted; all but the last in a block if wanted."""

    def __init__(
        self,
        dropout: float = 0.0,
        *,
        batchnorm: bool = False,
        block: bool = False,
        offset: bool = False,
    ) -> None:
        normal: list[nn.Module] = [nn.BatchNorm1d(16)] if batchnorm else []
        # A bias before batch normalisation has no gradient but noise, of which Adam makes steps.
        first = [nn.Linear(6, 16, bias=not batchnorm), *normal, nn.Tanh(), nn.Dropout(dropout)]
        if offset:
            first.insert(0, Offset())
        super().__init__(*([nn.Sequential(*first)] if block else first), nn.Linear(16, 3))


def dataset(samples: int = SAMPLES) -> TensorDataset:
    """Three classes that six features tell apart."""
    generator = torch.Generator().manual_seed(5)
    inputs = torch.randn(samples, 6, generator=generator)
    return TensorDataset(inputs, inputs[:, :3].argmax(dim=1))


class CutOffError(Exception):
    """The end of a training that is to go on later."""


@dataclass
class Result:
    """What one rank saw."""

    events: list[dict[str, Any]] = field(default_factory=list)
    """Rank 0's."""
    printed: list[str] = field(default_factory=list)
    said: list[str] = field(default_factory=list)
    error: str = ""
    parameters: dict[str, Tensor] = field(default_factory=dict)
    """Whole ones."""
    buffers: dict[str, Tensor] = field(default_factory=dict)

    @property
    def losses(self) -> list[float]:
        """By step, where each was reported."""
        return [event["loss"] for event in self.events if event["event"] == "report"]


def whole_parameters(model: nn.Module) -> dict[str, Tensor]:
    """Of any wrapper's model, on every rank."""
    if isinstance(model, FullyShardedDataParallel):
        with model.summon_full_params(model, writeback=False):
            return {name: p.detach().clone() for name, p in model.named_parameters()}
    whole: dict[str, Tensor] = {}
    for name, parameter in model.named_parameters():
        value: Any = parameter.detach()
        value = value.full_tensor() if hasattr(value, "full_tensor") else value
        whole[name.removeprefix("module.")] = value.clone()
    return whole


@dataclass
class Job:
    """What is trained, and what happens to it."""

    model: dict[str, Any] = field(default_factory=dict)
    """Arguments of `Net`."""
    data: Samples = field(default_factory=dataset)
    trainer: dict[str, Any] = field(default_factory=dict)
    """Further arguments of the Trainer."""
    cut: int | None = None
    """Be cut off after so many steps."""
    stop: int | None = None
    """Ask the last rank to stop after so many steps."""
    warn: int | None = None
    """Warn the last rank by SIGUSR2 after so many steps."""
    poison: dict[int, int] = field(default_factory=dict)
    """By step, from 1: the rank that gets a loss which is not a number."""
    poison_gradient: bool = False
    """Leave the loss as it is, and spoil its gradient."""
    poison_again: bool = False
    """Also after it has gone back."""


def train(folder: Path, options: dict[str, Any], job: Job | None = None) -> Result:
    """Train on as many ranks as call it, saying the loss of each step.

    Args:
        folder: for checkpoints and events.
        options: of the Trainer, less than usual.
        job: what is trained.
    """
    job = job or Job()
    if dist.is_initialized():
        dist.barrier()  # all have joined before one refuses and leaves
    folder.mkdir(parents=True, exist_ok=True)
    events = folder / "events.jsonl"
    usual = {"steps": 6, "batch_size": 4, "lr": 1e-2, "save_every": 0, "events": events}
    given = Options(**{**usual, "checkpoints": folder / "checkpoints", **options})
    result = Result()
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err), join_world() as world:
        before = len(events.read_text().splitlines()) if events.exists() else 0
        arguments = {"evaluate": correct, "scores": ("accuracy",), "held_out": dataset(10)}

        def loss(model: nn.Module, batch: Any) -> Tensor:
            summed = classification_loss(model, batch)
            if trainer is None:  # under construction
                return summed
            if trainer.progress.step == job.cut:
                raise CutOffError
            if trainer.progress.step == job.stop and world.rank == world.size - 1:
                trainer.stop.requested = True
            if trainer.progress.step == job.warn and world.rank == world.size - 1:
                os.kill(os.getpid(), signal.SIGUSR2)
            wrong = job.poison.get(trainer.progress.step + 1) == world.rank
            wrong = wrong and (job.poison_again or trainer.rollbacks == 0)
            if wrong and job.poison_gradient:
                return summed + (summed * 0).sqrt()  # which is 0, and steep
            return summed * float("nan") if wrong else summed

        trainer: Trainer | None = None
        try:
            trainer = Trainer(
                lambda: Net(**job.model),
                job.data,
                given,
                world,
                **{"loss": loss, **arguments, **job.trainer},
            )
            trainer.train()
            result.parameters = whole_parameters(trainer.model)
            result.buffers = {
                name.removeprefix("module."): buffer.clone()
                for name, buffer in trainer.model.named_buffers()
            }
        except CutOffError:
            assert trainer is not None
            trainer.checkpoints.finish()  # a real end would end the thread that writes as well
        except Exception as error:  # noqa: BLE001 - the test looks at it
            result.error = f"{type(error).__name__}: {error}"
        if world.is_main and events.exists():
            result.events = [json.loads(row) for row in events.read_text().splitlines()[before:]]
    result.printed, result.said = out.getvalue().splitlines(), err.getvalue().splitlines()
    return result


def furthest(ours: Sequence[float], theirs: Sequence[float]) -> float:
    """The largest difference between two trainings' losses."""
    assert len(ours) == len(theirs) > 0
    return max(abs(a - b) for a, b in zip(ours, theirs, strict=True))


def last_accuracy(events: Path) -> float:
    """At the end of a training, by its events."""
    rows = [json.loads(row) for row in events.read_text().splitlines()]
    return float([row["accuracy"] for row in rows if row["event"] == "report"][-1])
