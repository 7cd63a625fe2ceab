"""Running the passes over a batch again as if for the first time."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch
from torch import nn
from torchmetrics import CatMetric, MeanSquaredError, SumMetric
from torchmetrics.classification import MulticlassAccuracy
from torchmetrics.wrappers import MultioutputWrapper

from composer import State
from composer.trainer.replay import MetricStates, Replay


class Mixed(nn.Module):
    """Running statistics, a table that nothing changes, a buffer that is replaced, and one that is not there."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(2)
        self.register_buffer("table", torch.arange(4.0))
        self.register_buffer("last", None)
        self.register_buffer("steps", torch.zeros(()))

    def forward(self, x):
        self.last = x.sum()
        self.steps = self.steps + 1
        return nn.functional.dropout(self.norm(x))


def contents(model: nn.Module) -> list[torch.Tensor | None]:
    return [
        None if module._buffers[name] is None else module._buffers[name].clone()
        for module in model.modules()
        for name in module._buffers
    ]


def test_each_batch_can_be_run_again() -> None:
    """Also after it is known which buffers change, more often than once."""
    model = Mixed()
    replay = Replay(State(model=model))
    for _ in range(6):
        replay.note()
        before, batch = contents(model), torch.rand(4, 2, generator=torch.Generator().manual_seed(1))
        outputs = []
        for _ in range(3):
            outputs.append((model(batch), random.random(), np.random.rand(), contents(model)))
            replay.restore()
            for now, old in zip(contents(model), before, strict=True):
                assert (now is None and old is None) or torch.equal(now, old)
        first, *others = outputs
        for other in others:
            assert torch.equal(first[0], other[0])
            assert first[1:3] == other[1:3]
        model(batch)


def test_tables_are_not_copied_in_each_batch() -> None:
    model = Mixed()
    replay = Replay(State(model=model))
    for _ in range(5):
        replay.note()
        model(torch.rand(4, 2))
    watched = {buffer.name for buffer in replay._watched}
    assert watched == {"running_mean", "running_var", "num_batches_tracked", "last", "steps"}


@pytest.mark.parametrize(
    ("metric", "update"),
    [
        (SumMetric(), lambda m: m.update(torch.rand(3))),
        (CatMetric(), lambda m: m.update(torch.rand(3))),
        (MeanSquaredError(), lambda m: m.update(torch.rand(3), torch.rand(3))),
        (MulticlassAccuracy(3), lambda m: m.update(torch.rand(4, 3), torch.randint(3, (4,)))),
        (MultioutputWrapper(MeanSquaredError(), 2), lambda m: m.update(torch.rand(3, 2), torch.rand(3, 2))),
    ],
    ids=lambda value: type(value).__name__,
)
@pytest.mark.parametrize("before", [0, 2])
def test_metrics(metric, update, before) -> None:
    metric.reset()
    for _ in range(before):
        update(metric)
    called, expected = metric.update_called, metric.compute() if before else None
    states = MetricStates({"metric": metric})
    for _ in range(2):
        update(metric)
        metric.compute()
        states.restore()
        assert metric.update_called is called
        if before:
            assert torch.equal(metric.compute(), expected)
