"""A small GPT: the decoder of a transformer, as GPT-2 has it, over bytes.

Radford et al., "Language Models are Unsupervised Multitask Learners", 2019: normalisation before
each part, GELU, learned positions. Input and output embedding are separate, since 256 tokens save
nothing by sharing them.
"""

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

from lab.training.gpt_data import BYTES

INITIAL_DEVIATION = 0.02


class Attention(nn.Module):
    """Causal self-attention of several heads. In and out: [batch, time, width]."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.query_key_value = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        """Each position takes from itself and those before it."""
        per_head = self.query_key_value(x).unflatten(-1, (3, self.heads, -1))
        query, key, value = per_head.permute(2, 0, 3, 1, 4)  # each [batch, head, time, width/heads]
        mixed = scaled_dot_product_attention(query, key, value, is_causal=True)
        joined: Tensor = self.out(mixed.transpose(1, 2).flatten(-2))
        return joined


class Block(nn.Module):
    """Attention, then an MLP on each position; both add to what goes by."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.attention_norm = nn.LayerNorm(width)
        self.attention = Attention(width, heads)
        self.mlp_norm = nn.LayerNorm(width)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, x: Tensor) -> Tensor:
        """In and out: [batch, time, width]."""
        x = x + self.attention(self.attention_norm(x))
        added: Tensor = self.mlp(self.mlp_norm(x))
        return x + added


class GPT(nn.Module):
    """Predicts the next byte at each position.

    Args:
        context: the longest input.
        width: of the residual stream; a multiple of `heads`.
        heads: of each attention.
        layers: blocks.
    """

    def __init__(
        self, context: int = 64, width: int = 128, heads: int = 4, layers: int = 4
    ) -> None:
        super().__init__()
        self.token = nn.Embedding(BYTES, width)
        self.position = nn.Embedding(context, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, BYTES, bias=False)
        self.apply(_initialise)
        # Each block adds to the residual stream twice, and the sum's variance should not grow.
        for name, parameter in self.named_parameters():
            if name.endswith(("attention.out.weight", "mlp.2.weight")):
                nn.init.normal_(parameter, std=INITIAL_DEVIATION / (2 * layers) ** 0.5)

    def forward(self, tokens: Tensor) -> Tensor:
        """What comes after each token.

        Args:
            tokens: [batch, time] int64, time at most `context`.

        Returns:
            Logits [batch, time, 256] float32.
        """
        positions = torch.arange(tokens.size(1), device=tokens.device)
        x = self.token(tokens) + self.position(positions)
        for block in self.blocks:
            x = block(x)
        logits: Tensor = self.head(self.norm(x))
        return logits


def _initialise(module: nn.Module) -> None:
    if isinstance(module, nn.Linear | nn.Embedding):
        nn.init.normal_(module.weight, std=INITIAL_DEVIATION)
    if isinstance(module, nn.Linear) and module.bias is not None:
        nn.init.zeros_(module.bias)
