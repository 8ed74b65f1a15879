"""How far a training is, as its checkpoints have it, and where it begins."""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any, NamedTuple

from torch import Tensor

from lab.errors import UsageError
from lab.training.order import Position


@dataclass(frozen=True)
class Sums:
    """Over some steps and all ranks."""

    loss: float = 0.0
    """Times items."""
    items: float = 0.0
    steps: int = 0
    seconds: float = 0.0
    """Of training on the slowest rank: neither of evaluation nor of saving."""

    def __add__(self, other: "Sums") -> "Sums":
        return Sums(*(getattr(self, f.name) + getattr(other, f.name) for f in fields(self)))


@dataclass
class TrainingProgress:
    """Everything, beside model, optimiser and random states, on which the next step depends."""

    step: int = 0
    """Steps of the optimiser that are done."""
    epoch: int = 0
    """In which the next one begins."""
    sample: int = 0
    """So many of the epoch are done."""
    samples: int = 0
    """Of the data set."""
    seed: int = 0
    """Of the order of the samples."""
    left_out: tuple[Position, ...] = ()
    """Where steps began after which something was not finite: their samples are not used again."""
    row: Sums = Sums()
    """Since the last line of the table: a stop in between changes nothing in the next one."""

    @property
    def position(self) -> Position:
        """Where in the data the next step begins."""
        return Position(self.epoch, self.sample)

    @position.setter
    def position(self, position: Position) -> None:
        self.epoch, self.sample = position

    def plain(self) -> dict[str, Any]:
        """For a checkpoint."""
        return {**asdict(self), "left_out": [list(position) for position in self.left_out]}

    def go_on_from(self, saved: dict[str, Any]) -> None:
        """Take over what a checkpoint has.

        Raises:
            UsageError: it was another training.
        """
        if saved.keys() != self.plain().keys():
            raise UsageError(
                "the checkpoint was saved by something else than this Trainer: start another "
                "training with --checkpoints FOLDER"
            )
        left_out = tuple(Position(*position) for position in saved["left_out"])
        row = Sums(**saved["row"])
        other = TrainingProgress(**{**saved, "left_out": left_out, "row": row})
        for what, theirs, ours in (
            ("samples", other.samples, self.samples),
            ("--seed", other.seed, self.seed),
        ):
            if theirs != ours:
                raise UsageError(
                    f"the checkpoint is of a training with {what} {theirs}, and this one has "
                    f"{ours}: resume with the same data and seed, or start another with "
                    "--checkpoints FOLDER"
                )
        vars(self).update(vars(other))


class Step(NamedTuple):
    """One step of one rank."""

    values: Tensor
    """[4] float64 on the rank's device, since to read it is to wait for a GPU: the sum of the loss
    over the items, how many they are, a norm of the rank's own gradient, its largest weight."""
    position: Position
    """Where in the data it began."""


class Fault(NamedTuple):
    """What was the first not to be finite. The smallest of several is the one to blame."""

    step: int
    order: int
    """A loss that is not finite makes gradients so, and these the weights."""
    rank: int

    @property
    def what(self) -> str:
        """In words."""
        return ("loss", "gradient", "update")[self.order]

    def __str__(self) -> str:
        return f"the {self.what} at step {self.step} on rank {self.rank} is not finite"

    @staticmethod
    def look(step: int, *columns: Sequence[float]) -> list[float]:
        """The first step at which each was not finite; infinity: none.

        Args:
            step: the number of the last of them.
            columns: their losses, the norms of their gradients, their largest weights.
        """
        first = step - len(columns[0]) + 1
        bad = ((n for n, x in enumerate(row, first) if not math.isfinite(x)) for row in columns)
        return [next(steps, math.inf) for steps in bad]

    @classmethod
    def first(cls, steps: Sequence[Sequence[float]]) -> "Fault | None":
        """Of all ranks.

        Args:
            steps: by rank: the first step with such a loss, gradient and update; infinity: none.
        """
        faults = [
            cls(int(step), order, rank)
            for rank, row in enumerate(steps)
            for order, step in enumerate(row)
            if math.isfinite(step)
        ]
        return min(faults, default=None)
