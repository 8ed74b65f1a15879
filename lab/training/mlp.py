"""Train a multilayer perceptron on points of a noisy spiral: the smallest job there is.

    python -m lab.training.mlp                                   # one process
    lab run -m lab.training.mlp --layers 20 --parallel fsdp      # deeper, on the topology's ranks

Three classes, each an arm of a spiral in the plane, made from the seed: any number of samples.
"""

import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from lab.training.arguments import positive_int
from lab.training.classification import classification_loss, correct
from lab.training.job import run
from lab.training.options import Options, training_arguments
from lab.training.seeding import derived
from lab.training.trainer import Trainer
from lab.training.world import World

PROGRAM = "lab.training.mlp"
CLASSES = 3


@dataclass(frozen=True, kw_only=True)
class MlpOptions(Options):
    """What the command line can say."""

    layers: int = 3
    width: int = 64
    samples: int = 3000


class Mlp(nn.Sequential):
    """In: points [batch, 2]. Out: logits [batch, 3]. float32."""

    def __init__(self, layers: int = 3, width: int = 64) -> None:
        """Linear layers with ReLU between them.

        Args:
            layers: linear ones, at least 1.
            width: of the hidden ones.
        """
        sizes = [2, *[width] * (layers - 1), CLASSES]
        linear = [nn.Linear(*pair) for pair in pairwise(sizes)]
        between = [module for layer in linear for module in (layer, nn.ReLU())]
        super().__init__(*between[:-1])


def spiral(samples: int, seed: int) -> TensorDataset:
    """Points [samples, 2] float32 and their arms [samples] int64."""
    generator = torch.Generator().manual_seed(derived(seed, "spiral"))
    arms = torch.arange(samples) % CLASSES
    radius = torch.rand(samples, generator=generator).sqrt()
    angle = 2 * math.pi * (arms / CLASSES + radius)
    angle += 0.15 * torch.randn(samples, generator=generator)
    points: Tensor = radius.unsqueeze(1) * torch.stack([angle.cos(), angle.sin()], dim=1)
    return TensorDataset(points, arms)


def train(world: World, options: MlpOptions) -> None:
    """The whole of it."""
    Trainer(
        lambda: Mlp(options.layers, options.width),
        spiral(options.samples, options.seed),
        options,
        world,
        held_out=spiral(max(1, options.samples // 5), options.seed + 1),
        loss=classification_loss,
        evaluate=correct,
        scores=("accuracy",),
        name="mlp",
    ).train()


def main(argv: Sequence[str] | None = None) -> int:
    """Train as the command line says; the exit code."""
    parser = training_arguments(PROGRAM, "Train a multilayer perceptron.", MlpOptions())
    parser.add_argument("--layers", type=positive_int, help="linear layers (3)")
    parser.add_argument("--width", type=positive_int, help="of the hidden ones (64)")
    parser.add_argument("--samples", type=positive_int, help="to train on (3000)")
    return run(PROGRAM, MlpOptions(**vars(parser.parse_args(argv))), train)


if __name__ == "__main__":
    sys.exit(main())
