"""What grows with each batch: against the memory of all batches."""

from __future__ import annotations

import functools
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader
from torchmetrics.classification import MulticlassAUROC

from benchmarks.estimate_memory import estimated, measured
from composer import Callback
from composer.estimation.configuration import Configuration
from composer.estimation.devices import Device
from composer.estimation.memory import Memory
from composer.estimation.report import Report
from composer.models import ComposerClassifier

BATCH = 256


class KeepOutputs(Callback):
    """Keeps copies of the outputs of the last batches, or of all."""

    def __init__(self, last: int = 0) -> None:
        self.kept: list[torch.Tensor] = []
        self.last = last

    def batch_end(self, state: Any, logger: Any) -> None:
        del logger
        self.kept = [*self.kept, state.outputs.detach().clone()][-self.last :]


class Growing(nn.Module):
    """Keeps its inputs in a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(64, 100)
        self.register_buffer("seen", torch.zeros(0, 64))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.training:
            self.seen = torch.cat([self.seen, x.detach()])
        return self.head(x)


@functools.cache
def data(count: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
    return [(torch.randn(64), torch.tensor(i % 100)) for i in range(count)]


def arguments(net: nn.Module, batches: int, *callbacks: Callback, evaluated: int = 0) -> dict[str, Any]:
    torch.manual_seed(0)
    metric = MulticlassAUROC(100, thresholds=None)
    model = ComposerClassifier(net, num_classes=100, val_metrics=metric if evaluated else None)
    samples = data(BATCH * 12)
    return {
        "model": model,
        "train_dataloader": DataLoader(samples[: BATCH * batches], BATCH),
        "eval_dataloader": DataLoader(samples[: BATCH * evaluated], BATCH) if evaluated else None,
        "optimizers": torch.optim.SGD(model.parameters(), 0.1),
        "max_duration": "1ep",
        "callbacks": list(callbacks),
        "progress_bar": False,
        "device": "cpu",
    }


def kept(found: dict[str, Any]) -> list[list[Any]]:
    return found["facts"]["kept"]


@pytest.mark.parametrize(
    "make",
    [
        pytest.param(lambda: arguments(nn.Linear(64, 100), 12, KeepOutputs()), id="callback"),
        pytest.param(lambda: arguments(Growing(), 12), id="buffer"),
        pytest.param(lambda: arguments(nn.Linear(64, 100), 3, evaluated=12), id="metric"),
    ],
)
def test_all_batches_count(make: Any) -> None:
    make()  # the data
    truth, found = measured(make), estimated(make)
    # Two copies of a growing buffer are taken to be there at the peak.
    assert 0.99 * truth < found["peak"] < 1.2 * truth


def test_the_report_tells_who_keeps_memory() -> None:
    found = estimated(lambda: arguments(nn.Linear(64, 100), 12, KeepOutputs()))
    assert kept(found) == [["KeepOutputs", 4 * BATCH * 100, 9]]
    assert found["roles"]["kept"] == 9 * 4 * BATCH * 100
    assert sum(found["roles"].values()) == found["peak"]


def test_the_last_two_outputs_do_not_grow() -> None:
    assert kept(estimated(lambda: arguments(nn.Linear(64, 100), 12, KeepOutputs(last=2)))) == []


class Mean(nn.Module):
    """Classifies sequences of any length by their mean."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(64, 100)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(x.mean(1))


@pytest.mark.parametrize("lengths, told", [((8, 16, 24, 32), True), ((8, 8, 8, 8), False)], ids=["growing", "equal"])
def test_the_report_tells_that_later_batches_may_be_larger(lengths: tuple[int, ...], told: bool) -> None:
    # The last batch has fewer samples, which are of the same size.
    shapes = zip((4, 4, 4, 2), lengths, strict=True)
    loader = [(torch.ones(size, length, 64), torch.zeros(size).long()) for size, length in shapes]
    found = estimated(lambda: {**arguments(Mean(), 1), "train_dataloader": loader})
    text = str(Report(Device("large", 2**30), Configuration(), Memory(found["peak"], facts=found["facts"])))
    assert ("samples take 2.01 KiB to 4.01 KiB in the first 2 batches; a later batch" in text) == told
