from __future__ import annotations

import copy
import math
import pickle
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from composer.core.event import Event
from composer.core.interval import IntervalSchedule, create_interval_scheduler
from composer.core.phase import Phase, TrainerMode
from composer.core.time import Time, TimeUnit
from composer.core.timestamp import Timestamp

EVAL = {"checkpoint_events": False, "final_events": {Event.FIT_END}}


@dataclass
class Clock:
    """The parts of the state that a schedule reads."""

    max_duration: Time | None
    dataloader_len: Time | None
    timestamp: Timestamp
    previous_timestamp: Timestamp | None = None
    train_phase: Phase = field(default_factory=lambda: Phase(TrainerMode.TRAIN))

    def get_elapsed_duration(self) -> Time | None:
        if self.max_duration is None:
            return None
        return self.timestamp.get(self.max_duration.unit) / self.max_duration

    def advance(self, timestamp: Timestamp) -> None:
        self.previous_timestamp, self.timestamp = self.timestamp, timestamp


def fit(schedule, max_duration, samples, *, sized=True, seconds=1.0, epochs_per_iteration=None, start=None):
    """Run a loop whose epochs have batches of ``samples``; return (event, timestamp) for each time it was due."""
    max_duration = Time.from_timestring(max_duration)
    clock = Clock(max_duration, Time(len(samples), "ba") if sized else None, start or Timestamp())
    fired = []

    def fire(event):
        if schedule(clock, event):
            fired.append((event, clock.timestamp))

    while clock.timestamp < max_duration:
        for size in samples:
            clock.advance(clock.timestamp.to_next_batch(size, 10 * size, seconds))
            fire(Event.BATCH_END)
            fire(Event.BATCH_CHECKPOINT)
            if clock.timestamp >= max_duration:
                break
        if clock.timestamp.batch_in_epoch < len(samples):
            break
        clock.advance(clock.timestamp.to_next_epoch())
        fire(Event.EPOCH_END)
        fire(Event.EPOCH_CHECKPOINT)
        if epochs_per_iteration and clock.timestamp.epoch_in_iteration == Time(epochs_per_iteration, "ep"):
            clock.advance(clock.timestamp.to_next_iteration())
            fire(Event.ITERATION_END)
            fire(Event.ITERATION_CHECKPOINT)
    fire(Event.FIT_END)
    return fired


def batches(fired):
    return [timestamp.count(TimeUnit.BATCH) for _, timestamp in fired]


def test_number_is_epochs():
    fired = fit(create_interval_scheduler(2), "5ep", [1] * 3)
    assert [(event, str(timestamp.epoch)) for event, timestamp in fired] == [
        (Event.EPOCH_CHECKPOINT, "2ep"),
        (Event.EPOCH_CHECKPOINT, "4ep"),
        (Event.EPOCH_CHECKPOINT, "5ep"),
    ]


@pytest.mark.parametrize("include_end", [True, False])
def test_end_coincides_with_the_interval(include_end):
    assert batches(fit(create_interval_scheduler("1ep", include_end), "3ep", [1] * 4)) == [4, 8, 12]
    assert batches(fit(create_interval_scheduler("1ep", include_end, **EVAL), "3ep", [1] * 4)) == [4, 8, 12]
    assert batches(fit(create_interval_scheduler("4ba", include_end), "3ep", [1] * 4)) == [4, 8, 12]
    assert batches(fit(create_interval_scheduler("4ba", include_end, **EVAL), "3ep", [1] * 4)) == [4, 8, 12]


def test_end_in_the_middle_of_an_epoch():
    fired = fit(create_interval_scheduler("1ep"), "6ba", [1] * 4)
    assert [(event, n) for (event, _), n in zip(fired, batches(fired), strict=True)] == [
        (Event.EPOCH_CHECKPOINT, 4),
        (Event.BATCH_CHECKPOINT, 6),
    ]
    assert batches(fit(create_interval_scheduler("1ep", include_end_of_training=False), "6ba", [1] * 4)) == [4]


def test_end_is_reported_at_the_requested_events():
    fired = fit(create_interval_scheduler("1ep", **EVAL), "6ba", [1] * 4)
    assert [event for event, _ in fired] == [Event.EPOCH_END, Event.FIT_END]


def test_end_is_reported_once():
    every = create_interval_scheduler("100ba", final_events=set(Event))
    assert [event for event, _ in fit(every, "8ba", [1] * 4)] == [Event.BATCH_END]


def test_epoch_checkpoint_after_the_final_batch_is_kept():
    # The checkpoint at the end of the epoch is another one than that after the last batch.
    fired = fit(create_interval_scheduler("1ep"), "4ba", [1] * 4)
    assert [event for event, _ in fired] == [Event.BATCH_CHECKPOINT, Event.EPOCH_CHECKPOINT]
    assert [event for event, _ in fit(create_interval_scheduler("2ep"), "4ba", [1] * 4)] == [Event.BATCH_CHECKPOINT]


@pytest.mark.parametrize(
    ("interval", "checkpoint_events", "event"),
    [
        ("1ep", True, Event.EPOCH_CHECKPOINT),
        ("1ep", False, Event.EPOCH_END),
        ("1iter", True, Event.ITERATION_CHECKPOINT),
        ("1iter", False, Event.ITERATION_END),
        *[(f"1{unit}", True, Event.BATCH_CHECKPOINT) for unit in ("ba", "sp", "tok", "sec")],
        *[(f"1{unit}", False, Event.BATCH_END) for unit in ("ba", "sp", "tok", "sec")],
        ("0.01dur", True, Event.BATCH_CHECKPOINT),
        ("0.01dur", False, Event.BATCH_END),
    ],
)
def test_events_of_the_units(interval, checkpoint_events, event):
    schedule = create_interval_scheduler(interval, False, checkpoint_events)
    fired = fit(schedule, "2ep", [1] * 2, epochs_per_iteration=1)
    assert {e for e, _ in fired} == {event}


def test_iterations():
    fired = fit(create_interval_scheduler("2iter"), "6ep", [1], epochs_per_iteration=1)
    assert [int(timestamp.iteration) for _, timestamp in fired][:2] == [2, 4]


@pytest.mark.parametrize("interval", [0, -1, "0ba", "-5sp", "0dur", "0sec"])
def test_never(interval):
    assert fit(create_interval_scheduler(interval), "2ep", [1] * 3) == []


def test_seconds_with_fractions():
    fired = fit(create_interval_scheduler("1sec", False), "8ba", [1] * 8, seconds=0.4)
    assert batches(fired) == [3, 5, 8]  # 1.2, 2.0, 3.2 seconds


@settings(deadline=None)
@given(
    samples=st.lists(st.integers(1, 50), min_size=1, max_size=12),
    epochs=st.integers(1, 4),
    interval=st.integers(1, 400),
    unit=st.sampled_from(["ba", "sp", "tok"]),
)
def test_due_once_for_each_multiple_that_a_step_passes(samples, epochs, interval, unit):
    steps = {"ba": [1] * len(samples), "sp": samples, "tok": [10 * n for n in samples]}[unit] * epochs
    ends = [sum(steps[: i + 1]) for i in range(len(steps))]
    expected = [i + 1 for i, (end, step) in enumerate(zip(ends, steps, strict=True)) if end % interval < step]
    without_end = create_interval_scheduler(f"{interval}{unit}", include_end_of_training=False)
    assert batches(fit(without_end, f"{epochs}ep", samples)) == expected
    if max(steps) <= interval:
        assert len(expected) == sum(steps) // interval
    for options in ({}, EVAL):
        with_end = batches(fit(create_interval_scheduler(f"{interval}{unit}", **options), f"{epochs}ep", samples))
        assert with_end == sorted({*expected, len(steps)})


@settings(deadline=None)
@given(length=st.integers(1, 15), epochs=st.integers(1, 8), interval=st.integers(1, 10))
def test_epochs_are_counted(length, epochs, interval):
    fired = fit(create_interval_scheduler(interval), f"{epochs}ep", [1] * length)
    assert len(fired) == math.ceil(epochs / interval)
    fired = fit(create_interval_scheduler(interval, include_end_of_training=False), f"{epochs}ep", [1] * length)
    assert len(fired) == epochs // interval


@settings(deadline=None)
@given(total=st.integers(1, 150), percent=st.integers(1, 100), length=st.integers(1, 60))
def test_fraction_of_batches(total, percent, length):
    period = -(-total * percent // 100)
    fired = fit(create_interval_scheduler(f"{percent / 100}dur", False), f"{total}ba", [1] * length)
    assert batches(fired) == list(range(period, total + 1, period))
    fired = fit(create_interval_scheduler(f"{percent / 100}dur", **EVAL), f"{total}ba", [1] * length)
    assert batches(fired) == sorted({*range(period, total + 1, period), total})


def test_fraction_of_epochs_is_in_batches():
    assert batches(fit(create_interval_scheduler("0.25dur"), "2ep", [1] * 10)) == [5, 10, 15, 20]
    assert batches(fit(create_interval_scheduler("0.3dur"), "2ep", [1] * 10)) == [6, 12, 18, 20]


def test_fraction_is_the_written_decimal():
    assert 100 * 0.07 > 7
    assert batches(fit(create_interval_scheduler("0.07dur", False), "100ba", [1] * 100))[:3] == [7, 14, 21]


@pytest.mark.parametrize(
    ("max_duration", "expected"),
    [("100sp", [3, 5, 8, 10]), ("1000tok", [3, 5, 8, 10]), ("10sec", [3, 6, 9, 10])],  # 2.5 seconds are rounded up
)
def test_fraction_of_other_units(max_duration, expected):
    fired = fit(create_interval_scheduler("0.25dur"), max_duration, [10] * 100, sized=False)
    assert batches(fired) == expected


@pytest.mark.parametrize(
    ("max_duration", "sized", "match"),
    [
        ("2ep", False, "dataloader has no length.*'100ba'.*train_subset_num_batches"),
        ("2iter", True, "iterations.*'1iter'"),
    ],
)
def test_fraction_that_cannot_be_counted(max_duration, sized, match):
    with pytest.raises(RuntimeError, match=match):
        fit(create_interval_scheduler("0.5dur"), max_duration, [1] * 3, sized=sized)


def test_fraction_without_max_duration():
    clock = Clock(None, None, Timestamp(batch=1), Timestamp())
    with pytest.raises(RuntimeError, match="requires max_duration"):
        create_interval_scheduler("0.5dur")(clock, Event.BATCH_CHECKPOINT)


def test_without_max_duration_there_is_no_end():
    clock = Clock(None, None, Timestamp(batch=2), Timestamp(batch=1))
    schedule = create_interval_scheduler("2ba")
    assert schedule(clock, Event.BATCH_CHECKPOINT)
    clock.advance(Timestamp(batch=3))
    assert not schedule(clock, Event.BATCH_CHECKPOINT)


@pytest.mark.parametrize("max_duration", ["8ba", "3ep"])
def test_repeated_calls_agree(max_duration):
    def twice(schedule):
        def ask(state, event):
            first = schedule(state, event)
            assert schedule(state, event) == first
            return first

        return ask

    once = fit(create_interval_scheduler("3ba"), max_duration, [1] * 4)
    assert fit(twice(create_interval_scheduler("3ba")), max_duration, [1] * 4) == once


@pytest.mark.parametrize("options", [{}, EVAL])
@pytest.mark.parametrize("interval", ["1ep", "3ba", "100ba", "0.5dur"])
@pytest.mark.parametrize("runs", [("1ba", "1ba"), ("2ep", "2ep"), ("8ba", "2ep"), ("2ep", "8ba"), ("2ep", "1ba")])
def test_reused_for_a_fit_from_zero(options, interval, runs):
    schedule = create_interval_scheduler(interval, **options)
    for max_duration in runs:
        fresh = create_interval_scheduler(interval, **options)
        assert fit(schedule, max_duration, [1] * 4) == fit(fresh, max_duration, [1] * 4)


def test_reset_into_longer_epochs_still_sees_the_end():
    schedule = create_interval_scheduler("1ep", **EVAL)
    assert batches(fit(schedule, "2ep", [1] * 4)) == [4, 8]
    assert batches(fit(schedule, "8ba", [1] * 20)) == [8]


def test_resumed_in_the_middle():
    whole = batches(fit(create_interval_scheduler("3ba"), "3ep", [1] * 4))
    resumed = fit(create_interval_scheduler("3ba"), "3ep", [1] * 4, start=Timestamp(epoch=1, batch=4))
    assert batches(resumed) == [n for n in whole if n > 4]


def test_final_events_by_name():
    assert create_interval_scheduler("1ep", final_events=["fit_end"]).final_events == {Event.FIT_END}
    with pytest.raises(ValueError, match="Did you mean 'fit_end'"):
        create_interval_scheduler("1ep", final_events=["fit_edn"])


@pytest.mark.parametrize(
    ("interval", "error", "match"),
    [
        ("5", ValueError, "interval='5' is not valid.*'5ep'"),
        ("5epp", ValueError, "Did you mean 'ep'"),
        (None, TypeError, "interval=None is not valid"),
        (True, TypeError, "interval=True is not valid"),
        (1.5, TypeError, r"interval=1\.5 is not valid.*integer"),
        (len, TypeError, "is not valid. Expected a time"),
    ],
)
def test_bad_interval(interval, error, match):
    with pytest.raises(error, match=match):
        create_interval_scheduler(interval)


def test_interval_is_an_object():
    schedule = create_interval_scheduler(Time(5, "ba"))
    assert isinstance(schedule, IntervalSchedule)
    assert repr(schedule) == "IntervalSchedule('5ba')"
    for other in (copy.deepcopy(schedule), pickle.loads(pickle.dumps(schedule))):
        assert batches(fit(other, "2ep", [1] * 6)) == [5, 10, 12]
