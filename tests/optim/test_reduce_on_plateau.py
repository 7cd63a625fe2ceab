"""Lower rates where a metric stops getting better."""

from __future__ import annotations

import warnings

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.optim.lr_scheduler import ReduceLROnPlateau
from torchmetrics import MeanMetric, MetricCollection

from composer.optim.scheduler import ReduceOnPlateauScheduler
from tests.optim.schedules import sgd, state_of


@given(
    values=st.lists(st.one_of(st.integers(-4, 4).map(float), st.floats(-4, 4), st.just(float("nan"))), max_size=60),
    mode=st.sampled_from(["min", "max"]),
    threshold_mode=st.sampled_from(["rel", "abs"]),
    threshold=st.sampled_from([0.0, 1e-4, 0.3]),
    patience=st.integers(0, 4),
    cooldown=st.integers(0, 3),
    least=st.sampled_from([0.0, 0.2]),
)
def test_same_as_torch(values, mode, threshold_mode, threshold, patience, cooldown, least) -> None:
    settings = {"factor": 0.5, "patience": patience, "threshold": threshold, "cooldown": cooldown}
    settings["threshold_mode"] = threshold_mode
    optimizer = sgd(lr=1.0)
    with warnings.catch_warnings():
        reference = ReduceLROnPlateau(optimizer, mode, min_lr=least, eps=0, **settings)
    ours = ReduceOnPlateauScheduler("eval/Loss", mode, min_factor=least, **settings)
    for value in values:
        if threshold_mode == "rel":
            value = abs(value)  # with a negative best, torch takes worse values for better ones
        reference.step(value)
        assert ours.update(value) == optimizer.param_groups[0]["lr"]


@given(
    values=st.lists(st.integers(1, 9).map(float), max_size=30),
    threshold_mode=st.sampled_from(["rel", "abs"]),
    threshold=st.sampled_from([0.0, 1e-4, 0.3]),
)
def test_negative_values_are_the_mirror_of_positive_ones(values, threshold_mode, threshold) -> None:
    """A log-likelihood that rises is a loss that falls."""
    settings = {"factor": 0.5, "patience": 1, "threshold": threshold, "threshold_mode": threshold_mode}
    falls = ReduceOnPlateauScheduler("eval/Loss", "min", **settings)
    rises = ReduceOnPlateauScheduler("eval/LogLikelihood", "max", **settings)
    assert [falls.update(value) for value in values] == [rises.update(-value) for value in values]


@pytest.mark.parametrize(("monitor", "better"), [("eval/CrossEntropy", 0.0), ("eval/Accuracy", 1.0)])
def test_the_name_says_what_is_better_without_a_mode(monitor, better) -> None:
    schedule = ReduceOnPlateauScheduler(monitor, factor=0.5, patience=0)
    assert [schedule.update(value) for value in (0.5, better, 1 - better)] == [1.0, 1.0, 0.5]


class Smaller(MeanMetric):
    higher_is_better = False


def test_the_metric_says_what_is_better_and_an_unknown_one_asks_for_a_mode() -> None:
    state = evaluated(eval_Spread=1.0)
    schedule = ReduceOnPlateauScheduler("Spread", factor=0.5, patience=0)
    with pytest.raises(ValueError, match=r"monitor='Spread'.*Pass mode='min' or mode='max'"):
        schedule.__check__(state)
    state.eval_metrics["eval"]["Spread"] = Smaller()
    schedule.__check__(state)
    assert [schedule.update(value) for value in (0.5, 0.4, 0.45)] == [1.0, 1.0, 0.5]
    ReduceOnPlateauScheduler("Spread", "max").__check__(evaluated(eval_Spread=1.0))  # what is given wins


@given(values=st.lists(st.floats(0, 1), min_size=2, max_size=30), cut=st.integers(0, 30))
def test_goes_on_after_loading(values, cut) -> None:
    def make():
        return ReduceOnPlateauScheduler("eval/Loss", "min", factor=0.5, patience=1, cooldown=1)

    straight, before, after = make(), make(), make()
    expected = [straight.update(value) for value in values]
    found = [before.update(value) for value in values[:cut]]
    after.load_state_dict(before.state_dict())
    assert found + [after.update(value) for value in values[cut:]] == expected
    assert after.state_dict() == straight.state_dict()


def evaluated(**values: float):
    state = state_of()
    for name, value in values.items():
        label, _, metric = name.partition("_")
        state.eval_metrics.setdefault(label, {})[metric] = MeanMetric()
        state.eval_metrics[label][metric].update(torch.tensor(value))
    return state


@pytest.mark.parametrize("monitor", ["metrics/eval/Loss", "eval/Loss", "Loss"])
def test_finds_the_metric(monitor) -> None:
    schedule = ReduceOnPlateauScheduler(monitor, "min", patience=0)
    state = evaluated(eval_Loss=0.5, eval_Accuracy=0.9, other_Accuracy=0.1)
    schedule.__check__(state)
    assert schedule.__observe__(state, ["eval"]) is False
    assert schedule.best == 0.5
    assert schedule.__observe__(state, ["other"]) is False
    assert schedule.multiplier == 1.0
    assert schedule.__observe__(state, ["other", "eval"]) is True
    assert schedule.multiplier == 0.1


def test_a_metric_that_saw_nothing_does_not_count() -> None:
    schedule = ReduceOnPlateauScheduler("Loss", "min", patience=0)
    state = evaluated(eval_Loss=0.5)
    state.eval_metrics["eval"]["Loss"].reset()
    assert schedule.__observe__(state, ["eval"]) is False
    assert schedule.best is None


def test_metrics_that_are_not_there() -> None:
    state = evaluated(eval_Loss=0.5, eval_Accuracy=0.9, other_Accuracy=0.1)
    with pytest.raises(ValueError, match=r"'eval/Acuracy' is not a metric .*Did you mean 'eval/Accuracy'\?"):
        ReduceOnPlateauScheduler("eval/Acuracy", "max").__check__(state)
    with pytest.raises(ValueError, match="of several evaluators; give one of 'eval/Accuracy', 'other/Accuracy'"):
        ReduceOnPlateauScheduler("Accuracy", "max").__check__(state)
    with pytest.raises(ValueError, match=r"has no metrics\. Pass eval_dataloader"):
        ReduceOnPlateauScheduler("Accuracy", "max").__check__(state_of())


def test_a_metric_of_several_numbers_is_refused() -> None:
    state = evaluated(eval_Loss=0.5)
    state.eval_metrics["eval"]["Loss"] = MetricCollection({"a": MeanMetric()})
    state.eval_metrics["eval"]["Loss"].update(torch.tensor(1.0))
    state.eval_metrics["eval"]["Loss"].update_called = True
    with pytest.raises(ValueError, match=r"monitor='Loss' must be one number, but eval/Loss computed \{'a'"):
        ReduceOnPlateauScheduler("Loss", "min").__observe__(state, ["eval"])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"mode": "maxx"}, "mode must be one of 'min', 'max', but got 'maxx'. Did you mean 'max'"),
        ({"factor": 1.0}, "factor must be between 0 and 1"),
        ({"factor": 0}, "factor must be between 0 and 1"),
        ({"patience": -1}, "patience must be 0 or greater"),
        ({"threshold": -1}, "threshold must be 0 or greater"),
        ({"threshold_mode": "relative"}, "threshold_mode must be one of 'rel', 'abs'"),
        ({"cooldown": -1}, "cooldown must be 0 or greater"),
        ({"min_factor": -1}, "min_factor must be 0 or greater"),
    ],
)
def test_wrong_arguments(arguments, message) -> None:
    with pytest.raises(ValueError, match=message):
        ReduceOnPlateauScheduler("Loss", **{"mode": "min", **arguments})
    with pytest.raises(TypeError, match="monitor must be the name of a metric such as 'eval/Accuracy', but got 3"):
        ReduceOnPlateauScheduler(3, "min")
