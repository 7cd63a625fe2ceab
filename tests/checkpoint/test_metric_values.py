"""Checkpointed values of metrics: every type that torch.load reads, and no other."""

from __future__ import annotations

import io
import warnings
from typing import Any

import numpy as np
import pytest
import torch
import torchmetrics
from torchmetrics import MeanMetric, Metric, classification, wrappers

from composer.checkpoint.metric_values import get_metric_values, set_metric_values
from composer.core import State


class Custom(Metric):
    """Computes a given value."""

    full_state_update = False

    def __init__(self, value: Any = None) -> None:
        super().__init__()
        self.value = value
        self.add_state("count", torch.tensor(0), dist_reduce_fx="sum")

    def update(self) -> None:
        self.count += 1

    def compute(self) -> Any:
        return self.value


class Uncached(Custom):
    """Computes at each call, without a cache."""

    def __init__(self, value: Any = None) -> None:
        super().__init__(value)
        self.compute_with_cache = False


def state_with(metric: Metric) -> State:
    state = State(torch.nn.Linear(1, 1))
    state.eval_metrics = {"eval": {"M": metric}}
    state.train_metrics = {}
    return state


def saved_of(metric: Metric) -> Any:
    """What a file holds after an evaluation."""
    state = state_with(metric)
    state.eval_values = {"eval": {"M": metric.compute()}}
    file = io.BytesIO()
    torch.save(get_metric_values(state), file)
    file.seek(0)
    return torch.load(file, weights_only=True)


def same(a: Any, b: Any) -> bool:
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[key], b[key]) for key in a)
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(map(same, a, b))
    return torch.equal(torch.as_tensor(a), torch.as_tensor(b))


PREDICTED, TARGET = torch.tensor([0, 1, 2, 1]), torch.tensor([0, 1, 1, 1])


@pytest.mark.parametrize(
    "make",
    [
        lambda: classification.MulticlassAccuracy(3),
        lambda: classification.MulticlassAccuracy(3, average=None),
        lambda: classification.MulticlassConfusionMatrix(3),
        lambda: torchmetrics.MeanSquaredError(),
        lambda: wrappers.ClasswiseWrapper(classification.MulticlassAccuracy(3, average=None)),
        lambda: wrappers.MinMaxMetric(torchmetrics.MeanSquaredError()),
    ],
)
def test_restored_metric_computes_the_same_value(make) -> None:
    metric = make()
    metric.update(PREDICTED, TARGET)
    expected, saved = metric.compute(), saved_of(metric)
    state = state_with(make())
    set_metric_values(state, saved)
    assert same(state.eval_metric_values["eval/M"], expected)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # wrappers that delegate warn that they have no updates
        assert same(state.eval_metrics["eval"]["M"].compute(), expected)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (1.5, 1.5), (3, 3), (True, True), ("text", "text"), (np.float64(2.5), 2.5), (np.int32(3), 3),
        ({"a": torch.ones(2), "b": [1.0, None]}, {"a": torch.ones(2), "b": [1.0, None]}), ((1, 2.0), [1, 2.0]),
        (torch.tensor(1.5, requires_grad=True), torch.tensor(1.5)),
    ],
)  # fmt: skip
def test_values_of_every_type(value, expected) -> None:
    for kind in (Custom, Uncached):
        metric = kind(value)
        metric.update()
        state = state_with(kind("another"))
        set_metric_values(state, saved_of(metric))
        assert str(state.eval_metric_values["M"]) == str(expected)


@pytest.mark.parametrize(
    "value", [object(), {"a": object()}, [1, {2}], {(1, 2): 3}, torch.zeros(2**20 + 1), [torch.zeros(2**19 + 1)] * 2]
)
def test_unsupported_values_are_not_saved(value) -> None:
    metric = Custom(value)
    metric.update()
    assert saved_of(metric)["eval"] == {"eval": {}}
    state = state_with(Custom())
    set_metric_values(state, saved_of(metric))
    assert state.eval_metric_values == {}  # and torchmetrics warns who asks the metric itself


def test_metric_updated_since_keeps_its_state() -> None:
    old, new = MeanMetric(), MeanMetric()
    old.update(1.0)
    new.update(3.0)
    state = state_with(new)
    set_metric_values(state, saved_of(old))
    assert state.eval_metric_values["M"] == 3.0


def test_update_or_reset_discards_the_restored_value() -> None:
    old = MeanMetric()
    old.update(1.0)
    saved = saved_of(old)
    state = state_with(MeanMetric())
    metric = state.eval_metrics["eval"]["M"]
    set_metric_values(state, saved)
    metric.update(5.0)
    assert metric.compute() == 5.0
    set_metric_values(state, saved)
    metric.reset()
    assert not metric.update_called


def test_other_metrics_and_labels_are_unchanged() -> None:
    old = MeanMetric()
    old.update(1.0)
    saved = saved_of(old)
    state = state_with(MeanMetric())
    state.eval_metrics = {"eval": {"Other": MeanMetric()}, "second": {"M": MeanMetric()}}
    set_metric_values(state, saved)
    assert state.eval_metric_values == {}


def test_training_values_are_saved_only_if_no_batch_followed() -> None:
    state = State(torch.nn.Linear(1, 1))
    state.train_metrics = {"M": MeanMetric()}
    state.train_metrics["M"].update(1.0)
    state.train_values, state.train_values_batch = {"M": torch.tensor(1.0)}, 0
    assert get_metric_values(state)["train"]["M"]["value"] == 1.0
    state.timestamp = state.timestamp.to_next_batch(1, 0, 0.0)
    assert get_metric_values(state)["train"] == {}
