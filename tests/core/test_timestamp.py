from __future__ import annotations

import copy
import datetime
import inspect
import operator
import pickle

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from composer.core.time import Time, TimeUnit
from composer.core.timestamp import Timestamp

COUNTERS = {
    "iteration": "iter",
    "epoch": "ep",
    "batch": "ba",
    "sample": "sp",
    "token": "tok",
    "epoch_in_iteration": "ep",
    "token_in_iteration": "tok",
    "batch_in_epoch": "ba",
    "sample_in_epoch": "sp",
    "token_in_epoch": "tok",
}
CLOCKS = ("total_wct", "iteration_wct", "epoch_wct", "batch_wct")
FIELDS = (*COUNTERS, *CLOCKS)

seconds = st.integers(0, 10**12).map(lambda n: datetime.timedelta(microseconds=n))
timestamps = st.builds(
    Timestamp, **{name: st.integers(0, 10**12) for name in COUNTERS}, **dict.fromkeys(CLOCKS, seconds)
)


def numbered() -> Timestamp:
    """Every field holds another number."""
    return Timestamp(*range(1, 11), *(datetime.timedelta(seconds=n) for n in range(11, 15)))


def changed(before: Timestamp, after: Timestamp) -> dict[str, object]:
    old, new = before.state_dict(), after.state_dict()
    return {name: new[name] for name in FIELDS if new[name] != old[name]}


class TestConstruction:
    def test_starts_at_zero(self):
        timestamp = Timestamp()
        for name, unit in COUNTERS.items():
            assert getattr(timestamp, name) == Time(0, unit)
        for name in CLOCKS:
            assert getattr(timestamp, name) == datetime.timedelta(0)

    def test_positional_order(self):
        timestamp = numbered()
        for number, (name, unit) in enumerate(COUNTERS.items(), start=1):
            assert getattr(timestamp, name) == Time(number, unit)
            assert getattr(timestamp, name).unit is TimeUnit(unit)
        for number, name in enumerate(CLOCKS, start=11):
            assert getattr(timestamp, name) == datetime.timedelta(seconds=number)

    @pytest.mark.parametrize("method", [Timestamp, Timestamp.copy])
    def test_signature(self, method):
        names = [name for name in inspect.signature(method).parameters if name != "self"]
        assert names == list(FIELDS)

    @pytest.mark.parametrize(("name", "unit"), COUNTERS.items())
    def test_counter_from_each_type(self, name, unit):
        expected = Timestamp(**{name: 5})
        for value in (Time(5, unit), f"5{unit}", 5.0, np.int64(5)):
            timestamp = Timestamp(**{name: value})
            assert timestamp == expected
            assert type(timestamp.state_dict()[name]) is int

    @pytest.mark.parametrize("name", CLOCKS)
    def test_clock_from_seconds(self, name):
        assert Timestamp(**{name: 1.5}) == Timestamp(**{name: datetime.timedelta(seconds=1.5)})

    @pytest.mark.parametrize(("name", "unit"), COUNTERS.items())
    def test_wrong_unit(self, name, unit):
        other = "ep" if unit == "ba" else "ba"
        with pytest.raises(ValueError, match=f"{name} counts in '{unit}', but got '5{other}'"):
            Timestamp(**{name: Time(5, other)})

    @pytest.mark.parametrize("value", [1.5, True, None, [1]])
    def test_invalid_count(self, value):
        with pytest.raises(TypeError, match="batch="):
            Timestamp(batch=value)

    @pytest.mark.parametrize("value", ["1h", True, Time(5, "sec")])
    def test_invalid_duration(self, value):
        with pytest.raises(TypeError, match="epoch_wct must be a timedelta or a number of seconds"):
            Timestamp(epoch_wct=value)

    @pytest.mark.parametrize("given", [{"batch": -1}, {"sample": Time(-1, "sp")}, {"batch_wct": -1e-3}])
    def test_negative(self, given):
        with pytest.raises(ValueError, match=f"{next(iter(given))} must not be negative"):
            Timestamp(**given)

    def test_attributes_cannot_be_set_accidentally(self):
        timestamp = Timestamp()
        with pytest.raises(AttributeError):
            timestamp.batch = 5
        with pytest.raises(AttributeError):
            timestamp.bacth = 5
        with pytest.raises(TypeError, match="unhashable"):
            hash(timestamp)

    def test_epoch_in_iteration_can_be_set(self):
        timestamp = Timestamp(epoch_in_iteration=3, batch=5)
        timestamp.epoch_in_iteration = Time(1, "ep")
        assert timestamp == Timestamp(epoch_in_iteration=1, batch=5)
        timestamp.epoch_in_iteration = 0
        assert timestamp == Timestamp(batch=5)
        with pytest.raises(ValueError, match="epoch_in_iteration counts in 'ep'"):
            timestamp.epoch_in_iteration = "1ba"


class TestSteps:
    def test_next_batch(self):
        before = numbered()
        after = before.to_next_batch(samples=32, tokens=100, duration=datetime.timedelta(seconds=2))
        second = datetime.timedelta(seconds=1)
        assert changed(before, after) == {
            "batch": 4,
            "sample": 36,
            "token": 105,
            "token_in_iteration": 107,
            "batch_in_epoch": 9,
            "sample_in_epoch": 41,
            "token_in_epoch": 110,
            "total_wct": 13 * second,
            "iteration_wct": 14 * second,
            "epoch_wct": 15 * second,
            "batch_wct": 2 * second,
        }
        assert before == numbered()

    def test_next_batch_without_counts(self):
        assert changed(numbered(), numbered().to_next_batch()) == {
            "batch": 4,
            "batch_in_epoch": 9,
            "batch_wct": datetime.timedelta(0),
        }

    def test_next_epoch(self):
        second = datetime.timedelta(seconds=1)
        assert changed(numbered(), numbered().to_next_epoch(duration=1.0)) == {
            "epoch": 3,
            "epoch_in_iteration": 7,
            "batch_in_epoch": 0,
            "sample_in_epoch": 0,
            "token_in_epoch": 0,
            "total_wct": 12 * second,
            "iteration_wct": 13 * second,
            "epoch_wct": 0 * second,
            "batch_wct": 0 * second,
        }

    def test_next_iteration(self):
        second = datetime.timedelta(seconds=1)
        assert changed(numbered(), numbered().to_next_iteration(duration=second)) == {
            "iteration": 2,
            "epoch_in_iteration": 0,
            "token_in_iteration": 0,
            "batch_in_epoch": 0,
            "sample_in_epoch": 0,
            "token_in_epoch": 0,
            "total_wct": 12 * second,
            "iteration_wct": 0 * second,
            "epoch_wct": 0 * second,
            "batch_wct": 0 * second,
        }

    @pytest.mark.parametrize("duration", [0.25, datetime.timedelta(seconds=0.25), np.float64(0.25)])
    @pytest.mark.parametrize("step", ["to_next_batch", "to_next_epoch", "to_next_iteration"])
    def test_duration_of_each_type(self, step, duration):
        assert getattr(Timestamp(), step)(duration=duration).total_wct == datetime.timedelta(milliseconds=250)

    @pytest.mark.parametrize("samples", [32, 32.0, Time(32, "sp"), "32sp", np.int64(32)])
    def test_samples_of_each_type(self, samples):
        after = Timestamp().to_next_batch(samples)
        assert after == Timestamp(batch=1, batch_in_epoch=1, sample=32, sample_in_epoch=32)

    def test_wrong_samples(self):
        with pytest.raises(ValueError, match="samples counts in 'sp', but got '3ba'"):
            Timestamp().to_next_batch(samples=Time(3, "ba"))
        with pytest.raises(TypeError, match=r"tokens=1\.5 is not valid"):
            Timestamp().to_next_batch(tokens=1.5)

    @given(
        timestamps, st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 10**9), st.floats(0, 1e4)), max_size=20)
    )
    @settings(deadline=None)
    def test_batches_add_up(self, start, batches):
        end = start
        for samples, tokens, duration in batches:
            end = end.to_next_batch(samples, tokens, duration)
        samples, tokens = sum(b[0] for b in batches), sum(b[1] for b in batches)
        elapsed = sum((datetime.timedelta(seconds=b[2]) for b in batches), datetime.timedelta(0))
        assert end.batch - start.batch == end.batch_in_epoch - start.batch_in_epoch == len(batches)
        assert end.sample - start.sample == end.sample_in_epoch - start.sample_in_epoch == samples
        assert end.token - start.token == end.token_in_epoch - start.token_in_epoch == tokens
        assert end.token_in_iteration - start.token_in_iteration == tokens
        for name in ("total_wct", "iteration_wct", "epoch_wct"):
            gained = getattr(end, name) - getattr(start, name)
            assert abs(gained - elapsed) <= len(batches) * datetime.timedelta(microseconds=1)
        assert (end.epoch, end.iteration) == (start.epoch, start.iteration)


class TestCopy:
    @given(timestamps)
    def test_all_copies_are_equal(self, timestamp):
        for other in (timestamp.copy(), copy.copy(timestamp), copy.deepcopy(timestamp)):
            assert other == timestamp
            assert other is not timestamp
        assert pickle.loads(pickle.dumps(timestamp)) == timestamp

    @pytest.mark.parametrize(("name", "unit"), COUNTERS.items())
    def test_replaces_a_counter(self, name, unit):
        for value in (99, Time(99, unit), f"99{unit}"):
            assert changed(numbered(), numbered().copy(**{name: value})) == {name: 99}
        assert changed(numbered(), numbered().copy(**{name: 0})) == {name: 0}

    @pytest.mark.parametrize("name", CLOCKS)
    def test_replaces_a_clock(self, name):
        assert changed(numbered(), numbered().copy(**{name: 99})) == {name: datetime.timedelta(seconds=99)}

    def test_checks(self):
        with pytest.raises(ValueError, match="epoch counts in 'ep'"):
            Timestamp().copy(epoch=Time(1, "ba"))

    def test_setter_does_not_change_the_original(self):
        timestamp = numbered()
        timestamp.copy().epoch_in_iteration = 0
        assert timestamp == numbered()


class TestReading:
    def test_count_and_get(self):
        timestamp = numbered()
        for unit, number in {"iter": 1, "ep": 2, "ba": 3, "sp": 4, "tok": 5, "sec": 11}.items():
            assert timestamp.count(TimeUnit(unit)) == number
            assert timestamp.get(unit) == timestamp.get(TimeUnit(unit)) == Time(number, unit)
        assert timestamp.get("epoch") == Time(2, "ep")

    def test_seconds(self):
        timestamp = Timestamp(total_wct=1.75)
        assert timestamp.count(TimeUnit.SECOND) == 1.75
        assert timestamp.get(TimeUnit.SECOND) == Time(1, "sec")

    @pytest.mark.parametrize(
        "read",
        [
            lambda t: t.count(TimeUnit.DURATION),
            lambda t: t.get("dur"),
            lambda t: t < Time(0.5, "dur"),
            lambda t: t.has_reached(Time(0.5, "dur")),
        ],
    )
    def test_fraction_is_unknown(self, read):
        with pytest.raises(ValueError, match=r"'dur'.*get_elapsed_duration"):
            read(Timestamp())

    def test_has_reached(self):
        timestamp = Timestamp(batch=5, epoch=1, total_wct=2.5)
        assert [timestamp.has_reached(Time(n, "ba")) for n in (4, 5, 6)] == [True, True, False]
        assert [timestamp.has_reached(Time(n, "sec")) for n in (2, 3)] == [True, False]

    def test_repr(self):
        assert repr(Timestamp()) == "Timestamp()"
        assert repr(Timestamp(batch=5, total_wct=1.25)) == "Timestamp(batch=5, total_wct=1.25)"

    @given(timestamps)
    def test_repr_evaluates(self, timestamp):
        assert eval(repr(timestamp), {"Timestamp": Timestamp}) == timestamp


class TestComparison:
    @pytest.mark.parametrize("unit", ["iter", "ep", "ba", "sp", "tok", "sec"])
    @pytest.mark.parametrize("compare", [operator.lt, operator.le, operator.gt, operator.ge, operator.eq, operator.ne])
    @pytest.mark.parametrize("number", [4, 5, 6])
    def test_by_the_counter_of_the_unit(self, unit, compare, number):
        timestamp = Timestamp(iteration=5, epoch=5, batch=5, sample=5, token=5, total_wct=5.5)
        assert compare(timestamp, Time(number, unit)) == compare(5, number)
        assert compare(timestamp, f"{number}{unit}") == compare(5, number)
        assert compare(Time(number, unit), timestamp) == compare(number, 5)
        assert compare(f"{number}{unit}", timestamp) == compare(number, 5)

    @given(timestamps, st.integers(0, 10**12), st.sampled_from(["iter", "ep", "ba", "sp", "tok", "sec"]))
    def test_agrees_with_get(self, timestamp, number, unit):
        time = Time(number, unit)
        assert (timestamp < time) == (timestamp.get(unit) < time) == (not timestamp.has_reached(time))
        assert (timestamp == time) == (timestamp.get(unit) == time)
        assert (timestamp > time) == (timestamp.get(unit) > time)

    @pytest.mark.parametrize("name", FIELDS)
    def test_equal_if_every_field_is(self, name):
        assert Timestamp() == Timestamp()
        assert Timestamp() != Timestamp(**{name: 1})

    @pytest.mark.parametrize("other", [None, 5, object(), {}])
    def test_other_types(self, other):
        assert Timestamp(batch=5) != other
        assert operator.eq(Timestamp(batch=5), other) is False
        with pytest.raises(TypeError, match="not supported between"):
            Timestamp() < other  # noqa: B015

    def test_timestamps_have_no_order(self):
        with pytest.raises(TypeError, match="not supported between"):
            Timestamp() < Timestamp(batch=1)  # noqa: B015


class TestState:
    def test_format(self):
        state = numbered().state_dict()
        assert list(state) == list(FIELDS)
        assert {name: state[name] for name in COUNTERS} == dict(zip(COUNTERS, range(1, 11), strict=True))
        assert all(type(state[name]) is int for name in COUNTERS)
        assert state["epoch_wct"] == datetime.timedelta(seconds=13)

    @given(timestamps)
    def test_state_dict_round_trip(self, timestamp):
        loaded = numbered()
        loaded.load_state_dict(timestamp.state_dict())
        assert loaded == timestamp

    @given(st.lists(st.floats(0, 10), max_size=30))
    def test_clocks_survive_any_sum_of_seconds(self, durations):
        timestamp = Timestamp()
        for duration in durations:
            timestamp = timestamp.to_next_batch(duration=duration)
        loaded = Timestamp()
        loaded.load_state_dict(timestamp.state_dict())
        assert loaded == timestamp

    def test_old_checkpoint(self):
        old = {"epoch": 1, "batch": 10, "sample": 320, "token": 0}
        old |= {"batch_in_epoch": 2, "sample_in_epoch": 64, "token_in_epoch": 0}
        loaded = numbered()
        loaded.load_state_dict(old)
        assert loaded == Timestamp(epoch=1, batch=10, sample=320, batch_in_epoch=2, sample_in_epoch=64)

    def test_missing_and_invalid_fields_change_nothing(self):
        loaded = numbered()
        state = Timestamp().state_dict()
        with pytest.raises(ValueError, match=r"lacks \['batch', 'token'\]"):
            loaded.load_state_dict({name: n for name, n in state.items() if name not in ("batch", "token")})
        with pytest.raises(ValueError, match="token_in_epoch must not be negative"):
            loaded.load_state_dict(state | {"token_in_epoch": -1})
        assert loaded == numbered()
