"""A multi-layer perceptron."""

from itertools import pairwise

import torch
from torch import nn

from lab.templates.rows import CLASSES, FEATURES


class Model(nn.Module):
    """A perceptron of three layers. In: float32 [batch, 16]. Out: logits [batch, 4]."""

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        sizes = (FEATURES, width, width)
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.Linear(i, o), nn.ReLU(), nn.Dropout(0.1)) for i, o in pairwise(sizes)
        )
        self.head = nn.Linear(width, CLASSES)

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        """Classify a batch."""
        for block in self.blocks:
            rows = block(rows)
        logits: torch.Tensor = self.head(rows)
        return logits
