"""EarlyStopper: when it stops, against a simulation of its rule, and that a resumed run stops there too."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torchmetrics import MeanMetric

from composer import Evaluator
from composer.callbacks import EarlyStopper
from composer.core import State
from composer.core.timestamp import Timestamp
from tests.callbacks.cases import Case, Run, run_with
from tests.common import labeled_data

CASE = Case(make=lambda folder: EarlyStopper("MulticlassAccuracy", "train", patience=10))


class Scripted:
    """A metric with given values."""

    update_called = True

    def __init__(self, values: list[Any], higher_is_better: bool | None = True) -> None:
        self.values = values
        self.higher_is_better = higher_is_better

    def compute(self) -> Any:
        return self.values.pop(0)


def epochs_trained(
    stopper: EarlyStopper,
    values: list[Any],
    start: int = 0,
    *,
    higher_is_better: bool | None = True,
    state: State | None = None,
) -> int:
    """Return after how many epochs training stops, if the metric has these values at their ends."""
    if state is None:
        state = State(torch.nn.Linear(1, 1), max_duration=f"{start + len(values) + 1}ep", train_dataloader=[1])
    metric: Any = Scripted(list(values), higher_is_better)
    state.train_metrics = {stopper.monitor: metric}
    for epoch in range(start, start + len(values)):
        state.timestamp = Timestamp(epoch=epoch + 1, batch=epoch + 1)
        stopper.epoch_end(state, None)  # pyright: ignore[reportArgumentType]
        if state.finished:
            return epoch + 1
    return start + len(values)


@pytest.mark.parametrize(
    ("values", "arguments", "stops_after"),
    [
        ([1, 2, 3, 4, 5], {}, 5),
        ([5, 4, 3, 2, 1], {}, 3),  # more than one epoch since the best
        ([5, 4, 3, 2, 1], {"patience": 0}, 2),
        ([5, 4, 3, 2, 1], {"patience": 2}, 4),
        ([5, 4, 3, 2, 1], {"patience": "3ba"}, 5),
        ([5, 4, 3, 2, 1], {"comp": "less"}, 5),
        ([5, 4, 3, 2, 1], {"comp": "LT"}, 5),
        ([5, 4, 3, 2, 1], {"comp": torch.less}, 5),
        ([5, 4, 3, 2, 1], {"comp": lambda value, best: value < best}, 5),
        ([1, 1.4, 1.8, 2.2, 2.6], {"min_delta": 0.5}, 5),  # 1.8 and 2.6 improve
        ([1, 1.4, 1.5, 1.6], {"min_delta": 0.6}, 3),
        ([1, 2, 2, 2, 3], {}, 4),  # equal is no improvement
        ([math.nan, 1, 2, 3], {}, 4),  # any number improves NaN
        ([1, math.nan, math.nan, math.nan], {}, 3),
        ([math.inf, 3, 2, 1], {"comp": "less"}, 4),
        (torch.tensor([5.0, 4.0, 3.0]), {}, 3),
    ],
)
def test_stops(values, arguments, stops_after) -> None:
    assert epochs_trained(EarlyStopper("M", "train", **arguments), list(values)) == stops_after


@given(
    values=st.lists(st.floats(-10, 10, width=32), min_size=1, max_size=12),
    patience=st.integers(0, 4),
    min_delta=st.floats(0, 3, width=32),
)
def test_stops_when_patience_is_used_up(values, patience, min_delta) -> None:
    best, best_epoch, expected = values[0], 1, len(values)
    for epoch, value in enumerate(values[1:], 2):
        if value > best and value - best > min_delta:
            best, best_epoch = value, epoch
        elif epoch - best_epoch > patience:
            expected = epoch
            break
    stopper = EarlyStopper("M", "train", min_delta=min_delta, patience=patience)
    # In double precision, as the simulation.
    tensors = [torch.tensor(value, dtype=torch.float64) for value in values]
    assert epochs_trained(stopper, tensors) == expected


@given(values=st.lists(st.integers(0, 3), min_size=2, max_size=10), data=st.data())
def test_a_resumed_run_stops_like_the_uninterrupted_one(values, data) -> None:
    straight = epochs_trained(EarlyStopper("M", "train", patience=1), values)
    cut = data.draw(st.integers(1, len(values) - 1))
    first, second = (EarlyStopper("M", "train", patience=1) for _ in range(2))
    if epochs_trained(first, values[:cut]) < cut or straight <= cut:
        return
    second.load_state_dict(first.state_dict())
    assert epochs_trained(second, values[cut:], start=cut) == straight


@given(values=st.lists(st.integers(0, 9), min_size=1, max_size=10), patience=st.integers(0, 3))
def test_a_falling_loss_is_the_mirror_of_a_rising_accuracy(values, patience) -> None:
    """``higher_is_better`` takes precedence over the metric's name."""
    mirrored = [9 - value for value in values]
    rising = epochs_trained(EarlyStopper("CrossEntropy", "train", patience=patience), values, higher_is_better=True)
    falling = EarlyStopper("MulticlassAccuracy", "train", patience=patience)
    assert epochs_trained(falling, mirrored, higher_is_better=False) == rising
    given = EarlyStopper("M", "train", comp="less", patience=patience)  # wins against the metric
    assert epochs_trained(given, mirrored, higher_is_better=True) == rising


def test_a_loss_that_falls_does_not_stop() -> None:
    """CrossEntropy has neither "loss" nor "error" in its name."""
    stopper = EarlyStopper("CrossEntropy", "eval", patience=0)
    run = run_with(stopper, data=labeled_data(), eval_dataloader=labeled_data(), max_duration="6ep")
    run.trainer.fit()
    values = run.values("metrics/eval/CrossEntropy")
    assert values == sorted(values, reverse=True)
    assert run.trainer.state.timestamp.epoch == 6


class Spread(MeanMetric):
    """A metric of unknown direction."""


class Larger(MeanMetric):
    higher_is_better = True


class Smaller(MeanMetric):
    higher_is_better = False


def unknown() -> Run:
    run = run_with(eval_dataloader=labeled_data())
    run.trainer.state.eval_metrics["eval"] = {"Spread": Spread()}
    return run


def test_requires_comp_at_fit_start_for_an_unknown_direction() -> None:
    run = unknown()
    run.trainer.state.callbacks.append(EarlyStopper("Spread", "eval"))
    with pytest.raises(ValueError, match=r"monitor='Spread'.*Pass comp='less' or comp='greater'"):
        run.trainer.fit()
    assert run.trainer.state.timestamp.batch == 0
    run = unknown()
    stopper = EarlyStopper("Spread", "eval", comp=torch.less)
    stopper.fit_start(run.trainer.state, None)  # pyright: ignore[reportArgumentType]
    assert stopper.comp_func is torch.less


def test_the_direction_is_that_of_the_current_run_metric() -> None:
    stopper, run = EarlyStopper("Spread", "eval"), unknown()
    for metric, expected in ((Larger(), torch.gt), (Smaller(), torch.lt)):
        run.trainer.state.eval_metrics["eval"]["Spread"] = metric
        stopper.fit_start(run.trainer.state, None)  # pyright: ignore[reportArgumentType]
        assert stopper.comp_func is expected


@pytest.mark.parametrize(
    ("values", "arguments", "reason"),
    [
        ([5, 4, 3], {}, "M 3 not above 5 for 2 epochs"),
        ([5, 4], {"patience": 0}, "M 4 not above 5 for 1 epoch"),
        (
            [1, 2, 2],
            {"comp": "lt", "patience": "1ba", "min_delta": 0.5},
            "M 2 not below 1 by more than 0.5 for 2 batches",
        ),
        ([1, math.nan, 2], {"comp": lambda value, best: value < best}, "M 2 not better than 1 for 2 epochs"),
    ],
)
def test_stop_reason(values, arguments, reason) -> None:
    state = State(torch.nn.Linear(1, 1), max_duration="9ep", train_dataloader=[1])
    assert epochs_trained(EarlyStopper("M", "train", **arguments), list(values), state=state) == len(values)
    assert state.stop is not None
    assert state.stop.reason == reason


def test_watches_the_evaluator_of_its_label_only() -> None:
    """The accuracy on data that training makes worse ends the run; that on other data would not."""
    stopper = EarlyStopper("MulticlassAccuracy", "second", patience=0)
    evaluators = [
        Evaluator(label=label, dataloader=labeled_data(1, 8, seed)) for label, seed in (("first", 1), ("second", 5))
    ]
    run = run_with(stopper, eval_dataloader=evaluators, max_duration="20ep")
    run.trainer.fit()
    seen = run.values("metrics/second/MulticlassAccuracy")
    assert float(stopper.best) == max(seen)
    assert 1 < len(seen) < 20
    assert seen[-1] <= max(seen[:-1])


def test_checks_every_batch_if_patience_is_in_batches() -> None:
    stopper = EarlyStopper("MulticlassAccuracy", "train", patience="0ba")
    run = run_with(stopper, data=[(torch.zeros(2, 4), torch.tensor([0, 1]))] * 8)
    run.trainer.fit()
    assert run.trainer.state.timestamp.batch == 2


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"monitor": "MulticlassAccuraccy", "dataloader_label": "train"}, "Did you mean 'MulticlassAccuracy'"),
        ({"monitor": "MulticlassAccuracy", "dataloader_label": "trian"}, "Did you mean 'train'"),
        ({"monitor": "MulticlassAccuracy", "dataloader_label": "eval"}, "is not a label of the data of this run"),
    ],
)
def test_refuses_unknown_data_and_metrics_before_training(arguments, message) -> None:
    run = run_with(EarlyStopper(**arguments))
    with pytest.raises(ValueError, match=message):
        run.trainer.fit()
    assert run.trainer.state.timestamp.batch == 0


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"comp": "bigger"}, ValueError, "comp must be one of"),
        ({"comp": 3}, TypeError, "comp must be a function"),
        ({"min_delta": -1}, ValueError, "min_delta"),
        ({"patience": "10tok"}, ValueError, "patience must be in epochs or batches"),
        ({"patience": -1}, ValueError, "patience"),
        ({"patience": "soon"}, ValueError, "patience='soon'"),
    ],
)
def test_refuses_invalid_arguments(arguments, error, message) -> None:
    with pytest.raises(error, match=message):
        EarlyStopper("M", "train", **arguments)


@pytest.mark.parametrize("value", [{"a": 1.0}, torch.zeros(3), (torch.ones(1), torch.ones(1))])
def test_refuses_a_metric_of_several_values(value) -> None:
    with pytest.raises(TypeError, match="single value"):
        epochs_trained(EarlyStopper("M", "train"), [value])
