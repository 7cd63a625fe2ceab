"""What all schedules have in common."""

from __future__ import annotations

import inspect
import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from composer.core.time import Time, TimeUnit
from composer.core.timestamp import Timestamp
from composer.optim import scheduler
from composer.optim.schedule import ComposerScheduler, as_time, over, rising
from composer.optim.schedule_times import Span
from tests.optim.schedules import count_batch, rates, state_of

SCHEDULES = {
    "ConstantScheduler": {},
    "ConstantWithWarmupScheduler": {"t_warmup": "2ba"},
    "CosineAnnealingScheduler": {},
    "CosineAnnealingWarmRestartsScheduler": {"t_0": "2ba", "t_mult": 2},
    "CosineAnnealingWithWarmupScheduler": {"t_warmup": "2ba"},
    "ExponentialScheduler": {"gamma": 0.9},
    "InverseSquareRootScheduler": {"t_warmup": "2ba"},
    "LinearScheduler": {},
    "LinearWithWarmupScheduler": {"t_warmup": "0.2dur"},
    "MultiStepScheduler": {"milestones": ["3ba", "0.5dur"]},
    "MultiStepWithWarmupScheduler": {"t_warmup": "2ba", "milestones": ["1ep"]},
    "OneMinusSqrtScheduler": {},
    "PolynomialScheduler": {"power": 2},
    "PolynomialWithWarmupScheduler": {"t_warmup": "2ba"},
    "ReduceOnPlateauScheduler": {"monitor": "eval/Accuracy", "mode": "max"},
    "SequentialScheduler": {
        "schedules": [scheduler.LinearScheduler(0, 1), scheduler.LinearScheduler()],
        "milestones": "2ba",
    },
    "StepScheduler": {"step_size": "1ep"},
    "WarmupStableDecayScheduler": {"t_warmup": "2ba"},
    "WithWarmup": {"schedule": scheduler.CosineAnnealingScheduler(), "t_warmup": "2ba"},
}


def make(name: str) -> ComposerScheduler:
    return getattr(scheduler, name)(**SCHEDULES[name])


def test_every_schedule_is_here() -> None:
    kinds = {name for name in scheduler.__all__ if inspect.isclass(getattr(scheduler, name))}
    assert set(SCHEDULES) == kinds - {"ComposerScheduler", "AssignedSchedule"}


@pytest.mark.parametrize("name", SCHEDULES)
def test_called_planned_previewed_and_compiled_it_is_the_same(name) -> None:
    schedule, state, called = make(name), state_of("10ba", epoch_length=5), []
    for _ in range(10):
        called.append(schedule(state))
        count_batch(state)
    called.append(schedule(state))
    assert schedule.preview("10ba", epoch_length=5) == called
    assert rates(make(name), state_of("10ba", epoch_length=5), 10) == called[:10]
    assert all(isinstance(value, float) for value in called)


@pytest.mark.parametrize("name", SCHEDULES)
def test_depends_on_the_time_and_on_nothing_before(name) -> None:
    plan_of = make(name)
    state = state_of("10ba", epoch_length=5)
    state.timestamp = Timestamp(batch=7, batch_in_epoch=2, epoch=1)
    assert plan_of(state) == plan_of.preview("10ba", epoch_length=5)[7]


@pytest.mark.parametrize("name", SCHEDULES)
def test_shows_its_arguments_and_can_be_pickled(name) -> None:
    schedule = make(name)
    found = eval(repr(schedule), vars(scheduler))
    assert repr(found) == repr(schedule)
    assert repr(pickle.loads(pickle.dumps(schedule))) == repr(schedule)
    assert found.preview("10ba", epoch_length=5) == schedule.preview("10ba", epoch_length=5)


@pytest.mark.parametrize("name", SCHEDULES)
def test_state_goes_round(name) -> None:
    first, second = make(name), make(name)
    second.load_state_dict(first.state_dict())
    assert second.state_dict() == first.state_dict()


def test_repr() -> None:
    shown = "CosineAnnealingWithWarmupScheduler(t_warmup='100ba', t_max='1dur', alpha_f=0.1, scale_warmup=False)"
    assert repr(scheduler.CosineAnnealingWithWarmupScheduler("100ba", alpha_f=0.1)) == shown


def test_preview() -> None:
    linear = scheduler.LinearScheduler()
    assert linear.preview("4ep") == linear.preview("4ba") == linear.preview("2ep", epoch_length=2)
    assert linear.preview("1e9tok", num_points=5) == linear.preview("4ba")
    assert linear.preview("8s", num_points=3) == [1.0, 0.5, 0.0]
    assert linear.preview("100ba", num_points=1) == [1.0, 0.0]
    assert len(linear.preview("7ba", num_points=100)) == 100


@pytest.mark.parametrize(
    ("schedule", "max_duration", "remedy"),
    [
        (scheduler.StepScheduler("3ba"), "2ep", "Pass epoch_length"),
        (scheduler.StepScheduler("1ep"), "20ba", "Pass epoch_length"),
        (scheduler.MultiStepScheduler(["1ep", "100sp"]), "2ep", "Give max_duration in samples"),
    ],
)
def test_preview_refuses_times_that_have_no_meaning_in_the_run(schedule, max_duration, remedy) -> None:
    with pytest.raises(ValueError, match=remedy):
        schedule.preview(max_duration)


def test_ways_to_write_one() -> None:
    class ByPlan(ComposerScheduler):
        def __plan__(self, horizon):
            span = horizon.span(Time(2, "ba"))
            return lambda now: 0.5 if span.reached(now) else 1.0

    class ByCall(ComposerScheduler):
        def __call__(self, state, ssr=1.0):
            return 0.5 if state.timestamp.batch >= 2 * ssr else 1.0

    for schedule in (ByPlan(), ByCall(), lambda state, ssr: 0.5 if state.timestamp.batch >= 2 * ssr else 1.0):
        assert rates(schedule, state_of("4ba"), 4) == [1.0, 1.0, 0.5, 0.5]
        assert rates(schedule, state_of("4ba"), 4, ssr=0.5) == [1.0, 0.5, 0.5, 0.5]
    assert ByPlan().with_warmup("1ba").preview("4ba") == [0, 1, 1, 0.5, 0.5]
    with pytest.raises(NotImplementedError, match=r"ByCall must override __plan__\(horizon\) to be used here"):
        ByCall().with_warmup("1ba").preview("4ba")


def test_ends() -> None:
    state = state_of("10ba")
    with pytest.raises(ValueError, match=r"StepScheduler has no end at which the next schedule could begin\. Set it"):
        (scheduler.StepScheduler("1ba") + scheduler.LinearScheduler())(state)
    with pytest.raises(TypeError, match="unsupported operand"):
        scheduler.LinearScheduler() + 3


def test_times() -> None:
    assert as_time("t", Time(3, "ep")) == as_time("t", "3ep")
    with pytest.raises(ValueError, match=r"t='3eps' is not valid\. '3eps'|t='3epp' is not valid"):
        as_time("t", "3epp")
    with pytest.raises(TypeError, match=r"t='1\.5ba' is not valid\. A time in batch units must be an integer"):
        as_time("t", "1.5ba")
    with pytest.raises(ValueError, match="t must be greater than 0, but got '0ba'"):
        as_time("t", "0ba", allow_zero=False)


@given(start=st.integers(0, 100), length=st.integers(1, 100), count=st.integers(0, 300))
def test_over(start, length, count) -> None:
    plan = over(Span(TimeUnit.TOKEN, length, start), lambda share: share)
    count = max(count, start)
    assert plan(Timestamp(token=count)) == pytest.approx(min((count - start) / length, 1))


@given(length=st.integers(1, 100), to=st.floats(-2, 2), start=st.floats(0, 1))
def test_rising_is_straight(length, to, start) -> None:
    plan = rising(Span(TimeUnit.BATCH, length, 3), to, lambda now: 99.0, start)
    values = [plan(Timestamp(batch=3 + k)) for k in range(length + 1)]
    assert values == pytest.approx([to * (start + (1 - start) * k / length) for k in range(length)] + [99.0])
