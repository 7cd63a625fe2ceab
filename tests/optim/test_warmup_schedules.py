"""Schedules that begin with a rise."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from composer.optim.scheduler import (
    ConstantScheduler,
    ConstantWithWarmupScheduler,
    CosineAnnealingScheduler,
    CosineAnnealingWithWarmupScheduler,
    LinearScheduler,
    LinearWithWarmupScheduler,
    MultiStepScheduler,
    MultiStepWithWarmupScheduler,
    PolynomialScheduler,
    PolynomialWithWarmupScheduler,
    StepScheduler,
    WithWarmup,
)
from composer.warnings import ComposerWarning
from tests.optim.schedules import rates, state_of

# Class, other arguments, and what it does from the end of the rise on, as a function of the share of the rest.
KINDS = {
    "constant": (ConstantWithWarmupScheduler, {"alpha": 0.5}, lambda s: 0.5),
    "linear": (LinearWithWarmupScheduler, {"alpha_i": 0.8, "alpha_f": 0.2}, lambda s: 0.8 - 0.6 * s),
    "cosine": (CosineAnnealingWithWarmupScheduler, {"alpha_f": 0.1}, lambda s: 0.55 + 0.45 * math.cos(math.pi * s)),
    "polynomial": (PolynomialWithWarmupScheduler, {"alpha_f": 0.1}, lambda s: 0.1 + 0.9 * (1 - s) ** 2),
}


def expected(after, warmup: int, total: int) -> list[float]:
    peak = after(0.0)
    return [peak * k / warmup if k < warmup else after((k - warmup) / (total - warmup)) for k in range(total)]


@pytest.mark.parametrize(
    ("t_warmup", "run"), [("4ba", "20ba"), ("0.2dur", "20ba"), ("8sp", "40sp"), ("32tok", "160tok"), ("2s", "10s")]
)
@pytest.mark.parametrize("name", KINDS)
def test_closed_form(name, t_warmup, run) -> None:
    kind, arguments, after = KINDS[name]
    found = rates(kind(t_warmup, **arguments), state_of(run), 20)
    assert found == pytest.approx(expected(after, 4, 20))


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize(("scale_warmup", "warmup"), [(False, 4), (True, 2)])
def test_scale_warmup(name, scale_warmup, warmup) -> None:
    kind, arguments, after = KINDS[name]
    found = rates(kind("4ba", scale_warmup=scale_warmup, **arguments), state_of("10ba"), 10, ssr=0.5)
    assert found == pytest.approx(expected(after, warmup, 10))


@pytest.mark.parametrize("ratio", [0.5, 2.0])
def test_a_scaled_rise_has_no_plateau_and_no_jump(ratio) -> None:
    total = int(40 * ratio)
    found = MultiStepWithWarmupScheduler("8ba", "30ba", scale_warmup=True).preview(f"{total}ba", ssr=ratio)
    warmup, milestone = int(8 * ratio), int(30 * ratio)
    assert found[: warmup + 1] == pytest.approx([k / warmup for k in range(warmup + 1)])
    assert found[warmup:milestone] == [1.0] * (milestone - warmup)
    assert found[milestone] == pytest.approx(0.1)


def test_milestones_count_from_the_beginning() -> None:
    found = MultiStepWithWarmupScheduler("2ba", ["1ba", "3ba", "0.5dur"], gamma=0.5).preview("8ba")
    assert found == [0, 0.5, 0.5, 0.25, 0.125, 0.125, 0.125, 0.125, 0.125]


def test_no_rise_at_all() -> None:
    assert LinearWithWarmupScheduler("0ba").preview("4ba") == LinearScheduler().preview("4ba")
    assert WithWarmup(LinearScheduler(), "0ba").preview("4ba") == LinearScheduler().preview("4ba")


def test_a_rise_that_is_cut_to_nothing_warns() -> None:
    with pytest.warns(ComposerWarning, match=r"t_warmup='0\.1dur' is less than one batch in this run"):
        assert ConstantWithWarmupScheduler("0.1dur").preview("5ba") == [1.0] * 6


@pytest.mark.parametrize("name", [*KINDS, "multi-step", "with"])
def test_longer_than_the_run(name) -> None:
    make = {
        "multi-step": lambda t: MultiStepWithWarmupScheduler(t, "1ba"),
        "with": lambda t: WithWarmup(ConstantScheduler(), t),
    }.get(name) or (lambda t: KINDS[name][0](t))
    # No error, as configurations of long runs are tried with `max_duration="1ba"`; it rises as in the long run.
    message = r"t_warmup='2ep' is 12ba, longer than the run of 10ba: the run ends before the warm-up does"
    with pytest.warns(ComposerWarning, match=message):
        found = make("2ep").preview("10ba", epoch_length=6)
    assert found == pytest.approx(make("2ep").preview("20ba", epoch_length=6)[:11])
    with pytest.warns(ComposerWarning, match=r"t_warmup='100ba' is 100ba, longer than the run of 1ba"):
        assert make("100ba").preview("1ba") == pytest.approx(make("100ba").preview("400ba")[:2])
    assert make("10ba").preview("10ba")[1] > 0


def test_a_rise_to_the_first_value_of_a_schedule_that_is_never_reached() -> None:
    schedule = LinearScheduler(t_max="0.5dur") + ConstantScheduler()
    for inner in (CosineAnnealingScheduler(), StepScheduler("0.1dur"), schedule):
        with pytest.warns(ComposerWarning, match="longer than the run"):
            assert WithWarmup(inner, "100ba").preview("2ba") == pytest.approx([0, 0.01, 0.02])


@pytest.mark.parametrize("name", KINDS)
def test_times_that_do_not_fit_together(name) -> None:
    kind, arguments, _ = KINDS[name]
    with pytest.raises(ValueError, match=r"t_warmup='8tok' is counted in 'tok' and t_max='1.0dur' in 'ba' in this run"):
        kind("8tok", **arguments).preview("10ba")
    with pytest.warns(ComposerWarning, match=r"t_warmup='16ba' \(16ba\) is longer than t_max='8ba' \(8ba\)"):
        rising = kind("16ba", t_max="8ba", **arguments)(state_of("100sp"))  # not comparable with the run
    assert rising == 0
    with pytest.warns(ComposerWarning, match="longer than the run of 2ba"):
        kind("6ba", t_max="5ba", **arguments).preview("2ba")
    with pytest.raises(ValueError, match=r"t_max='8ba' is 8ba, less than the run of 10ba"):
        kind("2ba", t_max="8ba", **arguments).preview("10ba")
    assert len(kind("2ba", t_max="12ba", **arguments).preview("10ba")) == 11
    assert len(kind("2ba", t_max="20ba", **arguments).preview("10ba", ssr=0.5)) == 11


SAME = [
    (LinearScheduler(0.7, 0.1), LinearWithWarmupScheduler("0.3dur", 0.7, 0.1)),
    (CosineAnnealingScheduler(alpha_f=0.1), CosineAnnealingWithWarmupScheduler("0.3dur", alpha_f=0.1)),
    (PolynomialScheduler(3), PolynomialWithWarmupScheduler("0.3dur", 3)),
    (ConstantScheduler(0.4), ConstantWithWarmupScheduler("0.3dur", 0.4)),
]


@pytest.mark.parametrize(("plain", "warm"), SAME)
@given(total=st.integers(4, 60))
def test_a_schedule_with_a_rise_is_the_one_of_that_name(plain, warm, total) -> None:
    # At its very end, where no step is, the constant one gives way.
    assert plain.with_warmup("0.3dur").preview(f"{total}ba")[:-1] == pytest.approx(warm.preview(f"{total}ba")[:-1])


def test_times_of_the_schedule_count_from_the_end_of_the_rise() -> None:
    assert StepScheduler("2ba", gamma=0.5).with_warmup("3ba").preview("7ba") == pytest.approx(
        [0, 1 / 3, 2 / 3, 1, 1, 0.5, 0.5, 0.25]
    )
    halves = MultiStepScheduler("0.5dur", gamma=0.5).with_warmup("2ba", alpha_i=0.5)
    assert halves.preview("6ba") == [0.5, 0.75, 1, 1, 0.5, 0.5, 0.5]


def test_the_rise_goes_to_the_first_value() -> None:
    assert LinearScheduler(0.5, 1.0).with_warmup("2ba").preview("4ba") == [0, 0.25, 0.5, 0.75, 1.0]
    assert ConstantScheduler(3.0).with_warmup("2ba", alpha_i=1.0).preview("3ba")[:3] == [3.0] * 3


def test_wrong_arguments() -> None:
    with pytest.raises(TypeError, match="schedule must be a ComposerScheduler with a plan"):
        WithWarmup(len, "1ba")
    with pytest.raises(ValueError, match="alpha_i must be between 0 and 1"):
        WithWarmup(ConstantScheduler(), "1ba", alpha_i=2)
    with pytest.raises(ValueError, match="t_warmup must be 0 or greater, but got '-1ba'"):
        CosineAnnealingWithWarmupScheduler("-1ba")
