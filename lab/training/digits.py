"""Train a small convolutional network with batch normalisation on handwritten digits.

    python -m lab.training.digits                                # one process
    lab run -m lab.training.digits                               # each rank its own statistics
    lab run -m lab.training.digits --sync-batchnorm              # those of all ranks' batches

1797 images of 8 x 8 pixels, by Alpaydin and Kaynak, UCI Machine Learning Repository,
https://doi.org/10.24432/C50P49. They are part of scikit-learn, so nothing is downloaded. Training
shifts them by a pixel at random, other ones in each epoch, so that there is some augmentation.
"""

import sys
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import Tensor, nn
from torch.utils.data import Dataset

from lab.training.classification import classification_loss, correct
from lab.training.job import run
from lab.training.options import Options, training_arguments
from lab.training.trainer import Trainer
from lab.training.world import World

PROGRAM = "lab.training.digits"
CLASSES = 10


@dataclass(frozen=True, kw_only=True)
class DigitsOptions(Options):
    """What the command line can say."""

    epochs: int = 5
    lr: float = 3e-3


class DigitsClassifier(nn.Sequential):
    """Two convolutions and a linear layer. In: [batch, 1, 8, 8]. Out: logits [batch, 10]."""

    def __init__(self) -> None:
        super().__init__(
            nn.Sequential(nn.Conv2d(1, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU()),
            nn.Sequential(nn.Conv2d(16, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU()),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Dropout(0.2),
            nn.Linear(32 * 4 * 4, CLASSES),
        )


class Digits(Dataset[tuple[Tensor, Tensor]]):
    """Images [1, 8, 8] float32 in [0, 1] and classes [] int64."""

    def __init__(self, images: Tensor, classes: Tensor, *, shift: bool) -> None:
        """Keep them.

        Args:
            images: [samples, 8, 8], in [0, 16].
            classes: [samples].
            shift: by a pixel in any direction, or none, at random.
        """
        self._images = images.float().div(16).unsqueeze(1)
        self._classes = classes.long()
        self._shift = shift

    def __len__(self) -> int:
        return len(self._classes)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        image = self._images[index]
        if self._shift:
            down, right = torch.randint(0, 3, (2,)).tolist()
            image = nn.functional.pad(image, (1, 1, 1, 1))[:, down : down + 8, right : right + 8]
        return image, self._classes[index]


def digits_split(held_out: float = 0.2, seed: int = 42) -> tuple[Digits, Digits]:
    """1437 samples to train on and 360 held out, stratified; the same on every rank."""
    data = load_digits()
    train_x, held_x, train_y, held_y = map(
        torch.as_tensor,
        train_test_split(
            data.images, data.target, test_size=held_out, random_state=seed, stratify=data.target
        ),
    )
    return Digits(train_x, train_y, shift=True), Digits(held_x, held_y, shift=False)


def train(world: World, options: DigitsOptions) -> None:
    """The whole of it; what a step is stands in `trainer.py`."""
    data, held_out = digits_split()
    Trainer(
        DigitsClassifier,
        data,
        options,
        world,
        held_out=held_out,
        loss=classification_loss,
        evaluate=correct,
        scores=("accuracy",),
        name="digits",
    ).train()


def main(argv: Sequence[str] | None = None) -> int:
    """Train as the command line says; the exit code."""
    parser = training_arguments(PROGRAM, "Train a network on handwritten digits.", DigitsOptions())
    return run(PROGRAM, DigitsOptions(**vars(parser.parse_args(argv))), train)


if __name__ == "__main__":
    sys.exit(main())
