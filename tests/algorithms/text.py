"""A small language model and small text batches, for methods that require them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from composer.core.model import ComposerModel
from tests.algorithms.cases import Outcome, weights
from tests.on_device import place

TextBatch = dict[str, Tensor]


class TextNet(ComposerModel):
    """Predicts a label for each token from earlier tokens, without position embeddings."""

    def __init__(self, num_layers: int = 1) -> None:
        super().__init__()
        self.embed = nn.Embedding(20, 16)
        layer = nn.TransformerEncoderLayer(16, 2, dim_feedforward=24, dropout=0.0, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, num_layers)
        self.head = nn.Linear(16, 20)

    def forward(self, batch: TextBatch) -> Tensor:
        ids = batch["input_ids"]
        causal = torch.ones(ids.shape[1], ids.shape[1], dtype=torch.bool, device=ids.device).triu(1)
        return self.head(self.encoder(self.embed(ids), mask=causal, is_causal=True))

    def loss(self, outputs: Tensor, batch: TextBatch) -> Tensor:
        return F.cross_entropy(outputs.flatten(0, 1), batch["labels"].flatten())


def make_text_model(num_layers: int = 1) -> TextNet:
    """The same model each time."""
    with torch.random.fork_rng():
        torch.manual_seed(1)
        return place(TextNet(num_layers))


def make_text_batches(number: int = 4, samples: int = 6, length: int = 16) -> list[TextBatch]:
    """The same batches each time."""
    generator = torch.Generator().manual_seed(2)

    def tokens() -> Tensor:
        return torch.randint(20, (samples, length), generator=generator)

    return place([{"input_ids": tokens(), "labels": tokens()} for _ in range(number)])


def train_by_hand(
    batches: list[TextBatch],
    surgery: Callable[[nn.Module, torch.optim.Optimizer], Any] = lambda model, optimizer: None,
    edit: Callable[[TextBatch, float], TextBatch] = lambda batch, elapsed: batch,
) -> Outcome:
    """Train in a custom loop: change the model at the start, and each batch based on the elapsed fraction."""
    model = make_text_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    surgery(model, optimizer)
    for number, batch in enumerate(batches):
        batch = edit(batch, number / len(batches))
        optimizer.zero_grad()
        model.loss(model(batch), batch).backward()
        optimizer.step()
    return weights(model)
