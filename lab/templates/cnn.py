"""A convolutional network, and small pictures for it."""

from itertools import pairwise

import torch
from torch import nn
from torch.utils.data import TensorDataset

CLASSES = 4


def dataset(*, train: bool) -> TensorDataset:
    """Replace this by your data: pairs of an input and a target, in one order on every rank.

    Here: pictures of stripes in four directions, float32 [1, 16, 16] and int64 []. Made from a
    seed, so nothing is downloaded. Where something is, let one rank of each node do it first, and
    the others wait no longer than TIMEOUT.
    """
    random = torch.Generator().manual_seed(1 if train else 2)
    classes = torch.randint(CLASSES, (1200 if train else 401,), generator=random)
    angles = (classes * torch.pi / CLASSES).view(-1, 1, 1)
    across, down = torch.meshgrid(torch.arange(16), torch.arange(16), indexing="ij")
    shift = 6 * torch.rand(len(classes), 1, 1, generator=random)
    stripes = torch.sin(across * angles.cos() + down * angles.sin() + shift)
    noise = torch.randn(stripes.shape, generator=random)
    return TensorDataset((stripes + noise).unsqueeze(1), classes)


class Model(nn.Module):
    """Three convolutions. In: float32 [batch, 1, 16, 16]. Out: logits [batch, 4].

    GroupNorm, whose statistics are each sample's own: BatchNorm's are those of this rank's
    microbatch, so they would differ from rank to rank (on GPUs there is nn.SyncBatchNorm).
    """

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        sizes = (1, width, width, width)
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.Conv2d(i, o, 3, padding=1), nn.GroupNorm(4, o), nn.ReLU())
            for i, o in pairwise(sizes)
        )
        self.head = nn.Linear(width, CLASSES)

    def forward(self, pictures: torch.Tensor) -> torch.Tensor:
        """Classify a batch."""
        for block in self.blocks:
            pictures = block(pictures)
        logits: torch.Tensor = self.head(pictures.mean(dim=(2, 3)))
        return logits
