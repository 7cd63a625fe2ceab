"""Training programs in which nothing is wrong: forward, loss and backward take most of the step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor, nn
from torch.optim import SGD, AdamW
from torch.utils.data import DataLoader

from composer import Callback, Trainer
from composer.algorithms import EMA, GradientClipping, LabelSmoothing, MixUp
from composer.callbacks import LRMonitor, SpeedMonitor
from composer.loggers import CSVLogger, InMemoryLogger
from tests.diagnosis.parts import BATCH, CLASSES, convolutions, ready, rows, trainer, wide

HEALTHY: list[str] = []


def healthy(function: Callable[[], Trainer]) -> Callable[[], Trainer]:
    """Note a program."""
    HEALTHY.append(function.__name__)
    return function


@healthy
def plain() -> Trainer:
    return trainer()


@healthy
def images() -> Trainer:
    return trainer(convolutions(), ready(64, 3, 32, 32))


@healthy
def with_loggers() -> Trainer:
    return trainer(
        loggers=[CSVLogger(), InMemoryLogger()], callbacks=[LRMonitor(), SpeedMonitor(window_size=5)], progress_bar=True
    )


@healthy
def with_methods() -> Trainer:
    return trainer(
        convolutions(),
        ready(64, 3, 32, 32),
        algorithms=[LabelSmoothing(0.1), MixUp(0.2), EMA("10ba"), GradientClipping("norm", 1.0)],
    )


@healthy
def from_memory() -> Trainer:
    return trainer(data=DataLoader(rows(4096), BATCH, shuffle=True))


@healthy
def with_workers() -> Trainer:
    return trainer(
        wide(hidden=1536), DataLoader(rows(4096), BATCH, shuffle=True, num_workers=1, persistent_workers=True)
    )


@healthy
def with_evaluation() -> Trainer:
    return trainer(eval_dataloader=ready(number=2), eval_interval="1ep", save_folder="out", save_interval="1ep")


class Transformer(nn.Module):
    """A small transformer of tokens."""

    def __init__(self, width: int = 128) -> None:
        super().__init__()
        self.embedding = nn.Linear(32, width)
        layer = nn.TransformerEncoderLayer(width, 4, width * 4, batch_first=True, dropout=0.0)
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(width, CLASSES)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.head(self.layers(self.embedding(inputs)).mean(1))


@healthy
def transformer() -> Trainer:
    return trainer(Transformer(), ready(16, 64, 32))


class KeepsLosses(Callback):
    def __init__(self) -> None:
        self.losses: list[float] = []

    def batch_end(self, state: Any, logger: Any) -> None:
        self.losses.append(float(state.loss))


@healthy
def with_a_callback() -> Trainer:
    net = wide()
    return trainer(net, optimizers=SGD(net.parameters(), 0.01, momentum=0.9), callbacks=[KeepsLosses()])


@healthy
def microbatched() -> Trainer:
    net = wide(hidden=1536)
    return trainer(net, optimizers=AdamW(net.parameters(), 1e-4, fused=True), device_train_microbatch_size=BATCH // 2)
