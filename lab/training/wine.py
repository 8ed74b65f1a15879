"""Train a classifier on the Wine data, in one process or on any number of ranks.

    python -m lab.training.wine                                  # one process
    lab run -m lab.training.wine                                 # the topology's ranks
    torchrun --nproc-per-node 2 -m lab.training.wine             # by PyTorch's launcher

The batch size is per rank: with N ranks a step takes N times as many samples, and an epoch has
that many fewer steps. `--global-batch 128` fixes the samples of a step instead.
"""

import sys
from collections.abc import Sequence

from torch import nn

from lab.training.classification import classification_loss, correct
from lab.training.data import CLASSES, FEATURES, wine_split
from lab.training.job import run
from lab.training.options import Options, training_arguments
from lab.training.trainer import Trainer
from lab.training.world import World

PROGRAM = "lab.training.wine"


class WineClassifier(nn.Sequential):
    """An MLP, 13-64-3. In: standardised features [batch, 13]. Out: logits [batch, 3]. float32."""

    def __init__(self) -> None:
        super().__init__(nn.Linear(FEATURES, 64), nn.ReLU(), nn.Linear(64, CLASSES))


def train(world: World, options: Options) -> None:
    """The whole of it; what a step is stands in `trainer.py`."""
    data = wine_split()
    Trainer(
        WineClassifier,
        data.train,
        options,
        world,
        held_out=data.held_out,
        loss=classification_loss,
        evaluate=correct,
        scores=("accuracy",),
        name="wine",
    ).train()


def main(argv: Sequence[str] | None = None) -> int:
    """Train as the command line says; the exit code."""
    parser = training_arguments(PROGRAM, "Train a classifier on the Wine data.", Options())
    return run(PROGRAM, Options(**vars(parser.parse_args(argv))), train)


if __name__ == "__main__":
    sys.exit(main())
