"""ThresholdStopper: training stops at the first check at which the comparison holds."""

from __future__ import annotations

import pytest
import torch
from torchmetrics import MeanMetric

from composer.callbacks import ThresholdStopper
from composer.core import State
from tests.callbacks.cases import Case, run_with
from tests.common import labeled_data

CASE = Case(make=lambda folder: ThresholdStopper("MulticlassAccuracy", "train", 2.0))

NAME = "metrics/train/MulticlassAccuracy"

# Learned gradually: the accuracy of an epoch rises from 0 to 1.
EASY = [(torch.eye(4)[:3], torch.tensor([0, 1, 2]))]


@pytest.mark.parametrize("threshold", [0.3, 0.6, 0.9])
def test_stops_at_the_first_epoch_that_reaches_it(threshold) -> None:
    run = run_with(ThresholdStopper("MulticlassAccuracy", "train", threshold), data=EASY, max_duration="50ep")
    run.trainer.fit()
    free = run_with(data=EASY, max_duration="50ep")
    free.trainer.fit()
    last_of = dict(zip(free.steps(NAME), free.values(NAME), strict=True))
    values = [last_of[epoch] for epoch in range(1, 51)]  # of one batch each
    expected = next(epoch for epoch, value in enumerate(values, 1) if value > threshold)
    assert run.trainer.state.timestamp.epoch == expected < 50


def test_a_smaller_is_better_metric_stops_below_the_threshold() -> None:
    stopper = ThresholdStopper("CrossEntropy", "eval", 0.9)
    run = run_with(stopper, data=EASY, eval_dataloader=EASY, max_duration="50ep")
    run.trainer.fit()
    values = run.values("metrics/eval/CrossEntropy")
    assert values[-1] < 0.9
    assert len(values) > 1
    assert all(value >= 0.9 for value in values[:-1])
    assert run.trainer.state.stop is not None
    assert run.trainer.state.stop.reason == f"CrossEntropy {values[-1]:.4g} below 0.9"


@pytest.mark.parametrize("comp", ["less", "greater", lambda value, threshold: not value > threshold])
def test_nan_never_reaches_the_threshold(comp) -> None:
    stopper = ThresholdStopper("Mean", "train", 0.5, comp=comp)
    state = State(torch.nn.Linear(1, 1), max_duration="9ep", train_dataloader=[1])
    state.train_metrics = {"Mean": MeanMetric(nan_strategy="disable")}
    state.train_metrics["Mean"].update(torch.tensor(float("nan")))
    stopper.epoch_end(state, None)  # pyright: ignore[reportArgumentType]
    assert state.stop is None
    assert not state.finished


def test_requires_comp_for_an_unknown_direction() -> None:
    run = run_with(ThresholdStopper("Spread", "eval", 1.0), eval_dataloader=EASY)
    run.trainer.state.eval_metrics["eval"] = {"Spread": MeanMetric()}
    with pytest.raises(ValueError, match="Pass comp='less' or comp='greater'"):
        run.trainer.fit()


def test_stop_on_batch_stops_in_the_middle_of_an_epoch() -> None:
    for on_batch, expected in ((True, 1), (False, 4)):
        stopper = ThresholdStopper("MulticlassAccuracy", "train", -1.0, stop_on_batch=on_batch)
        run = run_with(stopper, data=labeled_data(4), max_duration="3ep")
        run.trainer.fit()
        assert run.trainer.state.timestamp.batch == expected


@pytest.mark.parametrize(("threshold", "error"), [("0.9", TypeError), (True, TypeError), (float("nan"), ValueError)])
def test_refuses_thresholds_that_nothing_reaches(threshold, error) -> None:
    with pytest.raises(error, match=r"threshold must be a number.* but got"):
        ThresholdStopper("MulticlassAccuracy", "train", threshold)


def test_refuses_unknown_data_and_metrics() -> None:
    with pytest.raises(ValueError, match="Did you mean 'greater'"):
        ThresholdStopper("M", "train", 1.0, comp="greatr")
    run = run_with(ThresholdStopper("MulticlassAcuracy", "train", 1.0))
    with pytest.raises(ValueError, match="Did you mean 'MulticlassAccuracy'"):
        run.trainer.fit()
