"""A small network with chance in it, and runs of it."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from composer import Trainer
from composer.models import ComposerClassifier
from tests.common import CLASSES, FEATURES, At, Received, labeled_data


def network(width: int = 32, dropout: float = 0.2, seed: int = 1) -> ComposerClassifier:
    """The same network each time, with normalization and dropout."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        layers = [nn.Linear(FEATURES, width), nn.BatchNorm1d(width), nn.GELU(), nn.Dropout(dropout)]
        return ComposerClassifier(nn.Sequential(*layers, nn.Linear(width, CLASSES)), num_classes=CLASSES)


def run_of(device: str, model: Any = None, data: Any = None, **arguments: Any) -> tuple[Trainer, Received]:
    """A trainer on a device, not yet started, and what it logs."""
    model = network() if model is None else model
    log = Received(flush_interval=4)
    arguments.setdefault("optimizers", torch.optim.AdamW(model.parameters(), lr=0.01))
    arguments.setdefault("max_duration", "1ep")
    arguments.setdefault("loggers", log)
    data = labeled_data(12, 16) if data is None else data
    return Trainer(model=model, train_dataloader=data, device=device, seed=5, progress_bar=False, **arguments), log


def losses_of(log: Received) -> list[float]:
    """The logged losses."""
    return [value for _, value in log.series("loss/train/total")]


def losses_at_once() -> At:
    """A callback that reads each loss at the end of its step, before anything may overwrite it."""
    return At("batch_end", lambda state: state.total_loss_dict["loss/train/total"].item())


def all_state(trainer: Trainer) -> dict[str, Tensor]:
    """Copies of all tensors of the model and the optimizers."""
    found = {name: tensor.detach().clone() for name, tensor in trainer.state.model.state_dict().items()}
    for place, optimizer in enumerate(trainer.state.optimizers):
        for number, state in enumerate(optimizer.state.values()):
            tensors = {name: value for name, value in state.items() if isinstance(value, Tensor)}
            found |= {f"{place}.{number}.{name}": value.detach().clone() for name, value in tensors.items()}
    return found


def different(one: dict[str, Tensor], other: dict[str, Tensor]) -> list[str]:
    """The names of tensors that are not equal bit for bit."""
    assert one.keys() == other.keys()
    return [name for name in one if not torch.equal(one[name], other[name])]
