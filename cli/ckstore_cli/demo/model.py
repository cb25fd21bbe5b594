"""A small GPT over bytes: what the demo trains.

Its embeddings are fixed random vectors that are not trained, of bytes, of positions and of pairs of
bytes. They are most of its parameters and the same in every checkpoint, so that a store that keeps
equal bytes once has something to show.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

BYTE_VALUES = 256


@dataclass(frozen=True, slots=True)
class Size:
    """How large the model is.

    Attributes:
        layers, heads: Blocks, and attention heads of each.
        width: Floats that stand for one byte of the text.
        pair_width: Floats in the fixed vector of a pair of bytes.
        context: Bytes of text that it sees at once.
        dropout: Share of activations that are dropped while it is trained.
    """

    layers: int = 4
    heads: int = 4
    width: int = 128
    pair_width: int = 64
    context: int = 128
    dropout: float = 0.1


class Block(nn.Module):
    """Causal attention and a perceptron, each around a residual."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        self.heads = size.heads
        self.dropout = size.dropout
        self.norm_1 = nn.LayerNorm(size.width)
        self.mix = nn.Linear(size.width, 3 * size.width)
        self.join = nn.Linear(size.width, size.width)
        self.norm_2 = nn.LayerNorm(size.width)
        self.perceptron = nn.Sequential(
            nn.Linear(size.width, 4 * size.width),
            nn.GELU(),
            nn.Linear(4 * size.width, size.width),
            nn.Dropout(size.dropout),
        )

    def forward(self, x: Tensor) -> Tensor:
        """Map (batch, time, width) to the same shape."""
        batch, time, width = x.shape
        heads = self.mix(self.norm_1(x)).view(batch, time, 3, self.heads, width // self.heads)
        query, key, value = heads.permute(2, 0, 3, 1, 4)
        seen = functional.scaled_dot_product_attention(
            query, key, value, is_causal=True, dropout_p=self.dropout if self.training else 0.0
        )
        x = x + self.join(seen.transpose(1, 2).reshape(batch, time, width))
        out: Tensor = x + self.perceptron(self.norm_2(x))
        return out


class ByteGpt(nn.Module):
    """Predict each next byte of a text."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        self.bytes = _fixed(BYTE_VALUES, size.width)
        self.positions = _fixed(size.context, size.width)
        self.pairs = _fixed(BYTE_VALUES**2, size.pair_width)
        self.widen = nn.Linear(size.pair_width, size.width, bias=False)
        self.drop = nn.Dropout(size.dropout)
        self.blocks = nn.Sequential(*(Block(size) for _ in range(size.layers)))
        self.norm = nn.LayerNorm(size.width)
        self.head = nn.Linear(size.width, BYTE_VALUES, bias=False)

    def forward(self, text: Tensor) -> Tensor:
        """Map bytes (batch, time), int64, to logits (batch, time, 256)."""
        before = functional.pad(text[:, :-1], (1, 0))
        places = torch.arange(text.shape[1], device=text.device)
        x = self.bytes(text) + self.positions(places) + self.widen(self.pairs(before * 256 + text))
        logits: Tensor = self.head(self.norm(self.blocks(self.drop(x))))
        return logits

    def loss(self, window: Tensor) -> Tensor:
        """Return the mean cross entropy in nats of each byte of (batch, time + 1) but the first."""
        logits = self(window[:, :-1])
        return functional.cross_entropy(logits.flatten(0, 1), window[:, 1:].flatten())

    def trained(self) -> list[nn.Parameter]:
        """Return the parameters that are trained."""
        return [parameter for parameter in self.parameters() if parameter.requires_grad]


def _fixed(count: int, width: int) -> nn.Embedding:
    fixed = nn.Embedding(count, width)
    nn.init.normal_(fixed.weight, std=0.5)
    return fixed.requires_grad_(requires_grad=False)
