"""A small transformer on bytes, and what the methods have to know of it."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from composer import ComposerModel
from composer.algorithms.alibi import policy_registry
from composer.algorithms.gated_linear_units import register_feed_forward
from composer.nn.alibi import NoPositions, alibi_bias

SEQUENCE, VOCABULARY = 96, 128  # tokens; codes of ASCII


class Positions(nn.Embedding):
    """Learned positions."""

    def forward(self, input: Tensor) -> Tensor:
        return super().forward(torch.arange(input.shape[1], device=input.device))


class Attention(nn.Module):
    """Causal self-attention, by a bias on distance if :class:`Alibi` turns that on.

    Args:
        width: Number of features.
        num_heads: Number of heads.
    """

    def __init__(self, width: int, num_heads: int) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.project = nn.Linear(width, 3 * width)
        self.output = nn.Linear(width, width)
        self.has_bias = False
        self._biases: dict[int, Tensor] = {}

    def forward(self, x: Tensor) -> Tensor:
        size = x.shape[1]
        query, key, value = self.project(x).unflatten(-1, (3, self.num_heads, -1)).permute(2, 0, 3, 1, 4)
        if self.has_bias:
            mixed = F.scaled_dot_product_attention(query, key, value, attn_mask=self._bias(size))
        else:
            mixed = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        return self.output(mixed.transpose(1, 2).flatten(2))

    def _bias(self, size: int) -> Tensor:
        if size not in self._biases:
            places = torch.arange(size)
            future = places[:, None] < places
            self._biases[size] = alibi_bias(self.num_heads, places, places).masked_fill(future, -torch.inf)
        return self._biases[size]


class FeedForward(nn.Module):
    """The network for each token."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.up, self.activation, self.down = nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(self.activation(self.up(x)))


class Block(nn.Module):
    """A layer of a transformer that normalizes first."""

    def __init__(self, width: int, num_heads: int) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.attention, self.feed_forward = Attention(width, num_heads), FeedForward(width)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norms[0](x))
        return x + self.feed_forward(self.norms[1](x))


class LanguageModel(ComposerModel):
    """A small transformer on bytes, of batches with ``input_ids`` and ``labels``, (B, S)."""

    def __init__(self, width: int = 64, num_layers: int = 2, num_heads: int = 4) -> None:
        super().__init__()
        self.tokens, self.positions = nn.Embedding(VOCABULARY, width), Positions(SEQUENCE, width)
        self.blocks = nn.Sequential(*(Block(width, num_heads) for _ in range(num_layers)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, VOCABULARY)
        for module in self.modules():
            if isinstance(module, nn.Linear | nn.Embedding):
                nn.init.normal_(module.weight, std=0.05)

    def forward(self, batch: Mapping[str, Tensor]) -> Tensor:
        tokens = batch["input_ids"]
        return self.head(self.norm(self.blocks(self.tokens(tokens) + self.positions(tokens))))

    def loss(self, outputs: Tensor, batch: Mapping[str, Tensor]) -> Tensor:
        return F.cross_entropy(outputs.flatten(0, 1), batch["labels"].flatten())

    def get_metrics(self, is_train: bool) -> dict[str, Any]:
        return {} if is_train else {"CrossEntropy": self._cross_entropy}

    def update_metric(self, batch: Mapping[str, Tensor], outputs: Tensor, metric: Any) -> None:
        metric.update(outputs.flatten(0, 1), batch["labels"].flatten())

    @cached_property
    def _cross_entropy(self) -> Any:
        from composer.metrics import CrossEntropy  # brings in torchmetrics

        return CrossEntropy()


register_feed_forward(FeedForward, linear="up", activation="activation")


@policy_registry.register(Positions)
def _drop_positions(module: Positions, module_index: int, max_sequence_length: int) -> nn.Module:
    return NoPositions()


@policy_registry.register(Attention)
def _turn_to_distance(module: Attention, module_index: int, max_sequence_length: int) -> nn.Module:
    module.has_bias = True
    return module
