"""Evaluators that a script adds to the state."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from composer import Callback, Evaluator, Trainer
from composer.models import ComposerClassifier


def loader() -> DataLoader[Any]:
    generator = torch.Generator().manual_seed(1)
    return DataLoader(TensorDataset(torch.randn(8, 4, generator=generator), torch.arange(8) % 3), 4)


def trainer(**options: Any) -> Trainer:
    module = nn.Sequential(nn.Linear(4, 3))
    return Trainer(
        model=ComposerClassifier(module, num_classes=3),
        train_dataloader=loader(),
        optimizers=torch.optim.SGD(module.parameters(), lr=0.1),
        max_duration="2ep",
        device="cpu",
        **options,
    )


class Counting(Callback):
    def __init__(self, metrics: bool) -> None:
        self.metrics, self.labels = metrics, []

    def init(self, state, logger) -> None:
        state.evaluators.append(Evaluator(label="own", dataloader=loader(), metric_names=["MulticlassAccuracy"]))
        if self.metrics:
            state.eval_metrics = {"own": state.model.get_metrics(is_train=False)}

    def eval_end(self, state, logger) -> None:
        self.labels.append(state.dataloader_label)


def test_evaluators_of_callbacks_run_with_those_passed() -> None:
    for metrics in (False, True):
        counting = Counting(metrics)
        run = trainer(callbacks=counting, eval_dataloader=loader(), eval_interval="1ep")
        run.fit()
        assert counting.labels == ["own", "eval"] * 2
        assert "MulticlassAccuracy" in run.state.eval_metrics["own"]
        assert ("CrossEntropy" in run.state.eval_metrics["own"]) is metrics


def test_evaluators_assigned_later_run_with_or_without_interval() -> None:
    for interval in ("1ep", None):
        run = trainer()
        run.state.evaluators = Evaluator(label="late", dataloader=loader(), eval_interval=interval)
        run.fit()
        assert int(run.state.eval_timestamp.batch) == 2
        assert run.state.eval_metrics["late"]["MulticlassAccuracy"].update_count == 2


def test_evaluators_assigned_later_are_evaluated_by_eval() -> None:
    run = trainer()
    run.state.evaluators = Evaluator(label="late", dataloader=loader())
    run.eval()
    assert run.state.eval_metrics["late"]["MulticlassAccuracy"].update_count == 2
