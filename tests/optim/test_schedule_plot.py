"""Plots of schedules show what ``preview`` returns, in the unit of the run."""

from __future__ import annotations

import math

import numpy as np
import pytest

from composer import optim
from composer.core.time import TimeUnit
from composer.optim import ComposerScheduler
from composer.warnings import ComposerWarning

ARGUMENTS = {
    "ConstantWithWarmupScheduler": {"t_warmup": "1ep"},
    "CosineAnnealingWarmRestartsScheduler": {"t_0": "1ep"},
    "CosineAnnealingWithWarmupScheduler": {"t_warmup": "1ep"},
    "ExponentialScheduler": {"gamma": 0.5},
    "InverseSquareRootScheduler": {"t_warmup": "1ep"},
    "LinearWithWarmupScheduler": {"t_warmup": "0.2dur"},
    "MultiStepScheduler": {"milestones": ["1ep", "0.7dur"]},
    "MultiStepWithWarmupScheduler": {"t_warmup": "1ep", "milestones": ["2ep"]},
    "PolynomialScheduler": {"power": 2},
    "PolynomialWithWarmupScheduler": {"t_warmup": "1ep"},
    "SequentialScheduler": {
        "schedules": [optim.ConstantScheduler(), optim.LinearScheduler()],
        "milestones": ["1ep"],
    },
    "StepScheduler": {"step_size": "1ep"},
    "WarmupStableDecayScheduler": {"t_warmup": "1ep", "t_decay": "1ep"},
    "WithWarmup": {"schedule": optim.LinearScheduler(), "t_warmup": "1ep"},
}
SCHEDULES = [
    name
    for name in optim.__all__
    if isinstance(one := getattr(optim, name), type)
    and issubclass(one, ComposerScheduler)
    and one not in (ComposerScheduler, optim.ReduceOnPlateauScheduler)
]


def curve(figure) -> tuple[np.ndarray, np.ndarray]:
    line = figure.axes[0].lines[-1]
    return np.asarray(line.get_xdata()), np.asarray(line.get_ydata())


@pytest.mark.parametrize("name", SCHEDULES)
def test_every_schedule(name: str) -> None:
    schedule = getattr(optim, name)(**ARGUMENTS.get(name, {}))
    figure = schedule.plot("4ep", epoch_length=25)
    x, y = curve(figure)
    np.testing.assert_allclose(x, np.arange(101) / 25)
    np.testing.assert_allclose(y, schedule.preview("4ep", epoch_length=25))
    assert figure.axes[0].get_xlabel() == "epochs"
    # The length of an epoch does not matter where all times are in epochs: the curve is that of short batches.
    x, y = curve(schedule.plot("4ep"))
    assert len(x) > 500
    np.testing.assert_allclose(y[::250], schedule.preview("4ep", epoch_length=1000)[::1000], atol=0.01)


@pytest.mark.parametrize(
    ("duration", "last", "label"),
    [("100ba", 100, "batches"), ("1e12tok", 1e12, "tokens"), ("1h30m", 5400, "seconds")],
)
def test_units(duration: str, last: float, label: str) -> None:
    figure = optim.LinearScheduler().plot(duration)
    x, y = curve(figure)
    assert (x[0], x[-1], figure.axes[0].get_xlabel()) == (0, last, label)
    assert len(x) <= 1001
    assert y[-1] == 0


@pytest.mark.parametrize(
    ("duration", "epoch_length", "error", "message"),
    [
        (10, None, TypeError, "max_duration must be a time such as '10ep', '1000ba' or '0.3dur', but got 10"),
        (None, None, TypeError, "max_duration must be a time"),
        ("abc", None, ValueError, "max_duration='abc' is not valid"),
        ("0ep", None, ValueError, "max_duration must be greater than 0, but got '0ep'"),
        ("-1ep", None, ValueError, "max_duration must be greater than 0"),
        ("10ep", 0, ValueError, "epoch_length must be greater than 0, but got 0"),
        ("10ep", -3, ValueError, "epoch_length must be greater than 0, but got -3"),
        ("10ep", 2.5, TypeError, "epoch_length must be .*, but got 2.5"),
    ],
)
def test_a_run_must_have_a_duration(duration, epoch_length, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        optim.LinearScheduler().plot(duration, epoch_length)
    if duration != "0ep":
        with pytest.raises(
            error, match=message.replace("duration must be greater than 0", "duration must be 0 or greater")
        ):
            optim.LinearScheduler().preview(duration, epoch_length)


def test_messages_are_in_the_units_that_were_given() -> None:
    with pytest.warns(ComposerWarning, match="t_warmup='20ep' is 20ep, longer than the run of 10ep") as caught:
        optim.CosineAnnealingWithWarmupScheduler("20ep").plot("10ep")
    assert len(caught) == 1
    late = optim.SequentialScheduler([optim.ConstantScheduler(), optim.LinearScheduler()], milestones=["20ep"])
    with pytest.raises(ValueError, match="the schedules before it last until 20ep, and the run ends at 10ep"):
        late.plot("10ep")


def test_a_schedule_that_depends_on_a_metric_has_no_curve() -> None:
    plateau = optim.ReduceOnPlateauScheduler("eval/Accuracy")
    for schedule in (plateau, plateau.with_warmup("1ep"), plateau.assign("lr")):
        with pytest.raises(ValueError, match=r"ReduceOnPlateauScheduler\(.* depends on a metric.*LRMonitor"):
            schedule.plot("10ep")


def test_an_assigned_schedule() -> None:
    linear = optim.LinearScheduler()
    figure = linear.assign("weight_decay").plot("4ep", epoch_length=25)
    np.testing.assert_allclose(curve(figure)[1], linear.preview("4ep", epoch_length=25))
    assert figure.axes[0].get_ylabel() == "multiplier of weight_decay"
    linear.plot("4ep", ax=figure.axes[0])
    legend = figure.axes[0].get_legend()
    assert [text.get_text() for text in legend.get_texts()] == ["LinearScheduler of weight_decay", "LinearScheduler"]
    with pytest.raises(TypeError, match=r"<lambda> is a function of the state of a run"):
        optim.AssignedSchedule(lambda state, ssr: 1.0, "weight_decay").plot("4ep")


@pytest.mark.parametrize(
    ("schedule", "duration", "remedy"),
    [
        (optim.StepScheduler("100ba"), "10ep", "Pass epoch_length, the number of batches in an epoch"),
        (optim.StepScheduler("1ep"), "10ba", "Pass epoch_length"),
        (optim.LinearScheduler().with_warmup("100ba"), "10ep", "'100ba' of WithWarmup"),
        (optim.LinearScheduler(t_max="8tok").with_warmup("1ep"), "10ep", "Give max_duration in tokens"),
        (optim.MultiStepScheduler(["1ep", "9ba"]), "10ep", "'9ba' of MultiStepScheduler"),
        (optim.StepScheduler("1ep"), "1dur", "dur' is a fraction of the run"),
    ],
)
def test_times_that_cannot_be_converted(schedule, duration, remedy) -> None:
    with pytest.raises(ValueError, match=remedy):
        schedule.plot(duration)


def test_several_in_one_figure() -> None:
    class Unknown(ComposerScheduler):
        def __plan__(self, horizon):
            return lambda now: math.nan

    figure = optim.LinearScheduler().plot("10ba")
    assert Unknown().plot("10ba", ax=figure.axes[0], label="$b$") is figure
    legend = figure.axes[0].get_legend()
    assert [text.get_text() for text in legend.get_texts()] == ["LinearScheduler", r"\$b\$"]


def test_custom_schedule() -> None:
    class Halving(ComposerScheduler):
        def __plan__(self, horizon):
            return lambda now: 0.5 ** now.count(TimeUnit.EPOCH)

    _, y = curve(Halving().plot("2ep"))
    assert sorted(set(y)) == [0.25, 0.5, 1.0]
