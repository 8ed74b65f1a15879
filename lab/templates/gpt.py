"""A small GPT over bytes, and text for it."""

import os
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import scaled_dot_product_attention
from torch.utils.data import TensorDataset

CONTEXT, BYTES = 64, 256


def dataset(*, train: bool) -> TensorDataset:
    """Replace this by your data: pairs of an input and a target, in one order on every rank.

    Here: 64 bytes of Python's own library, int64 [64], and the byte after each, int64 [64].
    """
    names = ("argparse", "ast", "typing")
    text = [b"".join((Path(os.__file__).parent / f"{name}.py").read_bytes() for name in names)]
    dist.broadcast_object_list(text)  # rank 0's: another node may have another Python
    rows = torch.tensor(list(text[0])).unfold(0, CONTEXT + 1, CONTEXT)
    held_out = torch.arange(len(rows)) % 10 == 9
    rows = rows[~held_out if train else held_out]
    return TensorDataset(rows[:, :-1], rows[:, 1:])


class Block(nn.Module):
    """Attention to what came before, then a perceptron, each added to its input."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width), nn.Dropout(0.1)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """In and out: [batch, time, width]."""
        batch, time, width = x.shape
        heads = self.qkv(self.norm1(x)).view(batch, time, 3, self.heads, width // self.heads)
        query, key, value = heads.permute(2, 0, 3, 1, 4)
        mixed = scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, time, width))
        added: torch.Tensor = self.mlp(self.norm2(x))
        return x + added


class Model(nn.Module):
    """A GPT over bytes. In: int64 [batch, time]. Out: logits of the next [batch, time, 256]."""

    def __init__(self, width: int = 64, heads: int = 4, layers: int = 2) -> None:
        super().__init__()
        self.bytes = nn.Embedding(BYTES, width)
        self.places = nn.Embedding(CONTEXT, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, BYTES, bias=False)

    def forward(self, text: torch.Tensor) -> torch.Tensor:
        """Say what comes after each byte."""
        x = self.bytes(text) + self.places(torch.arange(text.shape[1], device=text.device))
        for block in self.blocks:
            x = block(x)
        logits: torch.Tensor = self.head(self.norm(x))
        return logits
