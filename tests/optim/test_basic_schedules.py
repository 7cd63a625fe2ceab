"""The well-known schedules, against those of torch and in closed form."""

from __future__ import annotations

import math
import re
from functools import partial

import pytest
from torch.optim import lr_scheduler as theirs

from composer.optim.scheduler import (
    ConstantScheduler,
    ConstantWithWarmupScheduler,
    CosineAnnealingScheduler,
    CosineAnnealingWarmRestartsScheduler,
    CosineAnnealingWithWarmupScheduler,
    ExponentialScheduler,
    LinearScheduler,
    LinearWithWarmupScheduler,
    MultiStepScheduler,
    OneMinusSqrtScheduler,
    PolynomialScheduler,
    PolynomialWithWarmupScheduler,
    StepScheduler,
    WarmupStableDecayScheduler,
)
from tests.optim.schedules import rates, sgd, state_of

SAME_AS_TORCH = {
    "step": (StepScheduler("3ba", gamma=0.5), lambda o: theirs.StepLR(o, 3, gamma=0.5)),
    "multi-step": (MultiStepScheduler(["2ba", "5ba", "5ba"]), lambda o: theirs.MultiStepLR(o, [2, 5, 5])),
    "constant": (ConstantScheduler(0.3, t_max="4ba"), lambda o: theirs.ConstantLR(o, 0.3, 4)),
    "linear": (LinearScheduler(0.2, 0.9, t_max="7ba"), lambda o: theirs.LinearLR(o, 0.2, 0.9, total_iters=7)),
    "exponential": (ExponentialScheduler(0.8, "1ba"), lambda o: theirs.ExponentialLR(o, 0.8)),
    "cosine": (CosineAnnealingScheduler("12ba", alpha_f=0.1), lambda o: theirs.CosineAnnealingLR(o, 12, 0.1)),
    "polynomial": (PolynomialScheduler(3, t_max="9ba"), lambda o: theirs.PolynomialLR(o, 9, power=3)),
    "restarts": (
        CosineAnnealingWarmRestartsScheduler("3ba", t_mult=2),
        lambda o: theirs.CosineAnnealingWarmRestarts(o, 3, 2),
    ),
}


@pytest.mark.parametrize("name", SAME_AS_TORCH)
def test_same_as_torch(name) -> None:
    ours, make = SAME_AS_TORCH[name]
    optimizer = sgd()
    reference, expected = make(optimizer), []
    for _ in range(12):
        expected.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        reference.step()
    assert rates(ours, state_of("12ba"), 12) == pytest.approx(expected, abs=1e-12)


# What batch k of a run of two epochs of six batches counts, as a share of the length of the run.
UNITS = {"1dur": ("2ep", 6), "2ep": ("2ep", 6), "12ba": ("12ba", 6), "24sp": ("24sp", 6), "96tok": ("96tok", 6)}


@pytest.mark.parametrize("t_max", UNITS)
def test_the_same_curve_in_every_unit(t_max) -> None:
    run, epoch_length = UNITS[t_max]
    expected = [1 - k / 12 for k in range(12)]
    assert rates(LinearScheduler(t_max=t_max), state_of(run, epoch_length=epoch_length), 12) == pytest.approx(expected)
    assert rates(LinearScheduler(t_max="6sec"), state_of(run, epoch_length=epoch_length), 12) == pytest.approx(expected)


def test_epochs_of_unknown_length_change_values_where_they_end() -> None:
    schedule = MultiStepScheduler(["1ep", "2ep"], gamma=0.5)
    assert schedule.preview("3ep") == [1.0, 0.5, 0.25, 0.25]
    assert schedule.preview("3ep", epoch_length=2) == [1.0, 1.0, 0.5, 0.5, 0.25, 0.25, 0.25]


def test_after_the_end() -> None:
    assert LinearScheduler(alpha_f=0.2, t_max="2ba").preview("4ba") == pytest.approx([1, 0.6, 0.2, 0.2, 0.2])
    assert CosineAnnealingScheduler("2ba", 0.2).preview("4ba")[2:] == pytest.approx([0.2] * 3)
    assert PolynomialScheduler(2, "2ba", 0.2).preview("4ba")[2:] == pytest.approx([0.2] * 3)
    assert ConstantScheduler(0.5, "2ba").preview("4ba") == [0.5, 0.5, 1, 1, 1]
    assert LinearScheduler(t_max="0ba").preview("2ba") == [0, 0, 0]


def test_milestones_in_different_units() -> None:
    schedule = MultiStepScheduler(["2ba", "0.5dur", "1ep"], gamma=0.5)
    assert schedule.preview("8ba", epoch_length=6) == [1, 1, 0.5, 0.5, 0.25, 0.25, 0.125, 0.125, 0.125]
    assert MultiStepScheduler("1ba").milestones == MultiStepScheduler(["1ba"]).milestones


def test_a_ratio_scales_what_is_no_share() -> None:
    assert StepScheduler("4ba", gamma=0.5).preview("4ba", ssr=0.5) == [1, 1, 0.5, 0.5, 0.25]
    assert LinearScheduler(t_max="8ba").preview("4ba", ssr=0.5) == LinearScheduler().preview("4ba")
    period = ExponentialScheduler(0.5, "4ba").preview("4ba", ssr=0.5)
    assert period == pytest.approx([0.5 ** (k / 2) for k in range(5)])
    restarts = CosineAnnealingWarmRestartsScheduler("4ba").preview("4ba", ssr=0.5)
    assert restarts == pytest.approx([1, 0.5, 1, 0.5, 1])


def test_a_period_is_in_epochs_by_default() -> None:
    found = ExponentialScheduler(0.5).preview("2ep", epoch_length=4)
    assert found == pytest.approx([math.exp(-math.log(2) * k / 4) for k in range(9)])


WRONG = {
    "step_size must be greater than 0, but got '0ba'": lambda: StepScheduler("0ba"),
    "gamma must be greater than 0": lambda: StepScheduler("1ba", gamma=0),
    "milestones must be 0 or greater, but got '-1ba'": lambda: MultiStepScheduler(["-1ba"]),
    "milestones='5' is not valid. The time '5' has no unit": lambda: MultiStepScheduler(["5"]),
    "decay_period must be greater than 0": lambda: ExponentialScheduler(0.5, "0ep"),
    "t_max='1dir' is not valid": lambda: LinearScheduler(t_max="1dir"),
    "t_0 must be greater than 0": lambda: CosineAnnealingWarmRestartsScheduler("0ba"),
    "t_mult must be greater than 0": lambda: CosineAnnealingWarmRestartsScheduler("1ba", t_mult=0),
    "power must be greater than 0": lambda: PolynomialScheduler(0),
    "step_size='0.1dur' is less than one batch in this run": lambda: StepScheduler("0.1dur").preview("5ba"),
    "t_0='0.1dur' is less than one batch": lambda: CosineAnnealingWarmRestartsScheduler("0.1dur").preview("5ba"),
}


@pytest.mark.parametrize("message", WRONG)
def test_wrong_values(message) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        WRONG[message]()


MULTIPLIERS = [
    (make, name)
    for make, names in (
        (ConstantScheduler, ["alpha"]),
        (partial(ConstantWithWarmupScheduler, "1ba"), ["alpha"]),
        (LinearScheduler, ["alpha_i", "alpha_f"]),
        (partial(LinearWithWarmupScheduler, "1ba"), ["alpha_i", "alpha_f"]),
        (CosineAnnealingScheduler, ["alpha_f"]),
        (partial(CosineAnnealingWithWarmupScheduler, "1ba"), ["alpha_f"]),
        (partial(CosineAnnealingWarmRestartsScheduler, "1ba"), ["alpha_f"]),
        (partial(PolynomialScheduler, 2), ["alpha_f"]),
        (partial(PolynomialWithWarmupScheduler, "1ba"), ["alpha_f"]),
        (OneMinusSqrtScheduler, ["alpha_f"]),
        (partial(WarmupStableDecayScheduler, "1ba"), ["alpha_f"]),
    )
    for name in names
]


@pytest.mark.parametrize(
    ("value", "error"), [(math.nan, ValueError), (-1, ValueError), ("0.1", TypeError), (True, TypeError)]
)
def test_multipliers_that_are_not_numbers_from_zero_on(value, error) -> None:
    for make, name in MULTIPLIERS:
        with pytest.raises(error, match=f"^{name} must be "):
            make(**{name: value})
        assert getattr(make(**{name: 0}), name) == 0


def test_shrinking_restarts_are_refused_before_the_run_comes_to_them() -> None:
    schedule = CosineAnnealingWarmRestartsScheduler("2ba", t_mult=0.5)
    with pytest.raises(ValueError, match="impossible in this run: After a period of 1 the next would have length 0"):
        rates(schedule, state_of("9ba"), 1)
    rates(CosineAnnealingWarmRestartsScheduler("8ba", t_mult=0.5), state_of("14ba"), 14)


@pytest.mark.parametrize("time", [10, 1.5, None])
def test_wrong_kinds(time) -> None:
    with pytest.raises(TypeError, match=r"t_max must be a time such as '10ep', '1000ba' or '0\.3dur', but got"):
        CosineAnnealingScheduler(t_max=time)
