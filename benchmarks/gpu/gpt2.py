"""GPT-2 as Radford et al. 2019 define it, without dropout, by PyTorch alone."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn


@dataclass(frozen=True)
class Shape:
    """The sizes of a GPT-2; by default those of the model with 124 million parameters.

    Attributes:
        vocabulary: Number of tokens that there are, a multiple of 64 for the matrix units; GPT-2's own is 50257.
        sequence: Number of tokens in a sequence.
        width: Number of features of a token.
        num_layers: Number of blocks.
        num_heads: Number of attention heads.
    """

    vocabulary: int = 50304
    sequence: int = 1024
    width: int = 768
    num_layers: int = 12
    num_heads: int = 12


TINY = Shape(vocabulary=64, sequence=16, width=32, num_layers=2, num_heads=2)


class Positions(nn.Embedding):
    """Learned positions."""

    def forward(self, input: Tensor) -> Tensor:
        return super().forward(torch.arange(input.shape[1], device=input.device))


class Attention(nn.Module):
    """Causal self-attention."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.num_heads = shape.num_heads
        self.project = nn.Linear(shape.width, 3 * shape.width)
        self.output = nn.Linear(shape.width, shape.width)

    def forward(self, x: Tensor) -> Tensor:
        # (B, S, W) to three of (B, heads, S, W / heads)
        query, key, value = self.project(x).unflatten(-1, (3, self.num_heads, -1)).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        return self.output(mixed.transpose(1, 2).flatten(2))


class FeedForward(nn.Module):
    """The network that each token passes through."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.up, self.activation = nn.Linear(width, 4 * width), nn.GELU(approximate="tanh")
        self.down = nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(self.activation(self.up(x)))


class Block(nn.Module):
    """A layer, normalized before attention and before the feed-forward network."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.norm_1, self.attention = nn.LayerNorm(shape.width), Attention(shape)
        self.norm_2, self.feed_forward = nn.LayerNorm(shape.width), FeedForward(shape.width)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm_1(x))
        return x + self.feed_forward(self.norm_2(x))


class GPT2(nn.Module):
    """GPT-2; the embedding of tokens is the output layer too.

    Args:
        shape: Its sizes.

    Attributes:
        logits_dtype: That of the last logits: what shows that a training ran in bfloat16.
    """

    accepts_loss_kwargs = False  # for the Trainer of transformers: the loss is a mean
    logits_dtype: torch.dtype | None = None

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        self.tokens = nn.Embedding(shape.vocabulary, shape.width)
        self.positions = Positions(shape.sequence, shape.width)
        self.blocks = nn.ModuleList(Block(shape) for _ in range(shape.num_layers))
        self.norm = nn.LayerNorm(shape.width)
        self.head = nn.Linear(shape.width, shape.vocabulary, bias=False)
        self.head.weight = self.tokens.weight
        for name, parameter in self.named_parameters():
            if name.endswith("bias"):
                nn.init.zeros_(parameter)
            elif parameter.ndim == 2:
                # The layers that add to the residual stream are the smaller, the more of them there are.
                adds = name.endswith(("output.weight", "down.weight"))
                nn.init.normal_(parameter, std=0.02 / (2 * shape.num_layers) ** 0.5 if adds else 0.02)

    def forward(self, input_ids: Tensor, labels: Tensor | None = None) -> Tensor:
        """Return the mean loss, or the logits (B, S, V) where no labels are given.

        Args:
            input_ids: Tokens, (B, S).
            labels: The token that follows each, (B, S).
        """
        x = self.tokens(input_ids) + self.positions(input_ids)
        for block in self.blocks:
            x = block(x)
        logits = self.head(self.norm(x))
        self.logits_dtype = logits.dtype
        return logits if labels is None else loss(logits, labels)


def loss(logits: Tensor, labels: Tensor) -> Tensor:
    """Return the mean cross-entropy.

    Args:
        logits: (B, S, V).
        labels: (B, S).
    """
    return F.cross_entropy(logits.flatten(0, 1), labels.flatten())


def logits_of(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
    """Return the logits of a batch of :func:`batches`."""
    return model(batch["input_ids"])


def loss_of(logits: Tensor, batch: dict[str, Tensor]) -> Tensor:
    """Return the loss of the logits of a batch of :func:`batches`."""
    return loss(logits, batch["labels"])


def batches(shape: Shape, size: int, number: int) -> list[dict[str, Tensor]]:
    """Return the same batches each time, of sequences that count upwards by a step of their own, and so can be learned.

    Args:
        shape: That of the model.
        size: Number of sequences in a batch.
        number: Number of batches.
    """
    generator = torch.Generator().manual_seed(1)
    made = []
    for _ in range(number):
        start = torch.randint(shape.vocabulary, (size, 1), generator=generator)
        step = torch.randint(1, 8, (size, 1), generator=generator)
        tokens = (start + step * torch.arange(shape.sequence + 1)) % shape.vocabulary
        made.append({"input_ids": tokens[:, :-1].contiguous(), "labels": tokens[:, 1:].contiguous()})
    return made


def flops(shape: Shape) -> float:
    """Return the operations of training for each token: ``6 N + 12 L S W``, with N weights in matrix products.

    Attention is counted in full, as is usual, though its causal form leaves half of it out.

    Args:
        shape: That of the model.
    """
    weights = shape.num_layers * 12 * shape.width**2 + shape.vocabulary * shape.width
    return 6 * weights + 12 * shape.num_layers * shape.sequence * shape.width
