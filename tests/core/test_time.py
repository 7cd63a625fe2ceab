from __future__ import annotations

import copy
import operator
import pickle
from fractions import Fraction
from math import inf, nan

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import composer.core.time as time_module
from composer.core.time import Time, TimeUnit
from tests import after_torch

COUNTED = [unit for unit in TimeUnit if unit is not TimeUnit.DURATION]

counts = st.integers(-(10**15), 10**15)
shares = st.floats(-1e6, 1e6)
counted_times = st.builds(Time, counts, st.sampled_from(COUNTED))
times = st.one_of(counted_times, st.builds(Time, shares, st.just(TimeUnit.DURATION)))


@st.composite
def same_unit(draw: st.DrawFn, n: int) -> list[Time]:
    unit = draw(st.sampled_from(COUNTED))
    return [Time(draw(counts), unit) for _ in range(n)]


class TestTimeUnit:
    @pytest.mark.parametrize(
        ("spelling", "unit"),
        [
            ("iter", TimeUnit.ITERATION),
            ("ep", TimeUnit.EPOCH),
            ("BA", TimeUnit.BATCH),
            ("SAMPLE", TimeUnit.SAMPLE),
            ("Tokens", TimeUnit.TOKEN),
            ("duration", TimeUnit.DURATION),
            ("secs", TimeUnit.SECOND),
            ("seconds", TimeUnit.SECOND),
            ("epochs", TimeUnit.EPOCH),
            ("batches", TimeUnit.BATCH),
            ("iterations", TimeUnit.ITERATION),
            (" samples ", TimeUnit.SAMPLE),
        ],
    )
    def test_spellings(self, spelling, unit):
        assert TimeUnit(spelling) is unit

    def test_is_its_suffix(self):
        assert TimeUnit.EPOCH == "ep"
        assert str(TimeUnit.TOKEN) == "tok"
        assert {TimeUnit.BATCH: 1}["ba"] == 1

    def test_compares_as_plain_string(self):
        assert "__eq__" not in vars(TimeUnit)
        assert TimeUnit.__eq__ is str.__eq__
        assert TimeUnit.__hash__ is str.__hash__

    def test_mistyped(self):
        with pytest.raises(ValueError, match=r"'epohc' is not a unit of time. Did you mean 'epoch'\?.*'ba' \(batch\)"):
            TimeUnit("epohc")

    def test_not_a_string(self):
        with pytest.raises(ValueError, match="5 is not a valid TimeUnit"):
            TimeUnit(5)


class TestConstruction:
    def test_names_of_units(self):
        assert Time(10, "epoch") == Time(10, "ep") == Time(10, TimeUnit.EPOCH)

    @pytest.mark.parametrize(
        ("make", "value", "unit"),
        [
            (Time.from_iteration, 2, TimeUnit.ITERATION),
            (Time.from_epoch, 2, TimeUnit.EPOCH),
            (Time.from_batch, 2, TimeUnit.BATCH),
            (Time.from_sample, 2, TimeUnit.SAMPLE),
            (Time.from_token, 2, TimeUnit.TOKEN),
            (Time.from_duration, 0.5, TimeUnit.DURATION),
        ],
    )
    def test_constructors(self, make, value, unit):
        time = make(value)
        assert (time.value, time.unit) == (value, unit)

    def test_duration_holds_a_float(self):
        assert type(Time(1, "dur").value) is float

    @pytest.mark.parametrize("value", [3.0, np.int64(3), np.float32(3), Fraction(3)])
    def test_integers_of_other_types(self, value):
        time = Time(value, "ba")
        assert time.value == 3
        assert type(time.value) is int

    @pytest.mark.parametrize("unit", COUNTED)
    def test_fraction_of_a_counted_unit(self, unit):
        with pytest.raises(TypeError, match=r"integer, but got 1\.5.*'0\.5dur'"):
            Time(1.5, unit)

    @pytest.mark.parametrize("value", [True, None, "5", [1], 1j])
    @pytest.mark.parametrize("unit", ["ba", "dur"])
    def test_not_a_number(self, value, unit):
        with pytest.raises(TypeError, match="must be a number"):
            Time(value, unit)

    @pytest.mark.parametrize("value", [inf, -inf, nan])
    @pytest.mark.parametrize("unit", ["ba", "dur"])
    def test_not_finite(self, value, unit):
        with pytest.raises(ValueError, match="finite"):
            Time(value, unit)

    def test_unknown_unit(self):
        with pytest.raises(ValueError, match="Did you mean 'batch'"):
            Time(1, "bacth")

    def test_frozen(self):
        time = Time(1, "ba")
        with pytest.raises(AttributeError):
            time.value = 2
        assert not hasattr(time, "__dict__")

    def test_copies(self):
        time = Time(5, "ba")
        assert pickle.loads(pickle.dumps(time)) == copy.deepcopy(time) == copy.copy(time) == time

    def test_legacy_annotations(self):
        assert Time[int].__origin__ is Time

    def test_match_statement(self):
        match Time(5, "ba"):
            case Time(value, TimeUnit.BATCH):
                assert value == 5
            case _:
                pytest.fail("no match")

    def test_texts(self):
        assert repr(Time(5, "ba")) == "Time(5, TimeUnit.BATCH)"
        assert str(Time(5, "ba")) == f"{Time(5, 'ba')}" == Time(5, "ba").to_timestring() == "5ba"
        assert str(Time(1, "dur")) == "1.0dur"

    @given(times)
    def test_repr_evaluates(self, time):
        assert eval(repr(time), {"Time": Time, "TimeUnit": TimeUnit}) == time


class TestComparison:
    @pytest.mark.parametrize("other", [Time(5, "ba"), "5ba", 5, 5.0])
    def test_equal(self, other):
        time = Time(5, "ba")
        assert time == other
        assert other == time
        assert time <= other
        assert time >= other
        assert operator.ne(time, other) is False
        assert not time < other
        assert not time > other

    @pytest.mark.parametrize("other", [Time(6, "ba"), "6ba", 6])
    def test_less(self, other):
        time = Time(5, "ba")
        assert time < other
        assert time <= other
        assert other > time
        assert time != other
        assert not time > other
        assert not time >= other

    @pytest.mark.parametrize("other", [None, object(), True, [5]])
    def test_not_equal_to_other_types(self, other):
        assert operator.eq(Time(1, "ba"), other) is False
        assert Time(1, "ba") != other

    @pytest.mark.parametrize("compare", [operator.eq, operator.ne, operator.lt, operator.le, operator.gt, operator.ge])
    def test_units_differ(self, compare):
        with pytest.raises(
            RuntimeError, match=r"5ba and 1ep have different units \(batch and epoch\).*Pass both in the same unit"
        ):
            compare(Time(5, "ba"), Time(1, "ep"))
        with pytest.raises(RuntimeError, match="different units"):
            compare(Time(5, "ba"), "1ep")

    def test_fraction_beside_a_count(self):
        with pytest.raises(TypeError, match="integer"):
            Time(5, "ba") < 5.5  # noqa: B015

    @pytest.mark.parametrize("other", [None, True, object()])
    def test_no_order_with_other_types(self, other):
        with pytest.raises(TypeError, match="not supported between"):
            Time(5, "ba") < other  # noqa: B015

    def test_zero_is_truthy(self):
        assert Time(0, "ba")

    @given(same_unit(2))
    def test_exactly_one_of_less_equal_greater(self, pair):
        a, b = pair
        assert (a < b) + (a == b) + (a > b) == 1
        assert (a <= b) == (not a > b) == (b >= a)

    @given(st.lists(counts))
    def test_sorts_as_its_values(self, values):
        assert [t.value for t in sorted(Time(v, "sp") for v in values)] == sorted(values)

    @given(times, times)
    def test_equal_times_hash_equal(self, a, b):
        assert hash(a) == hash(Time.from_timestring(str(a)))
        if a.unit is b.unit and a == b:
            assert hash(a) == hash(b)

    def test_zeros_hash_equal(self):
        assert Time(0.0, "dur") == Time(-0.0, "dur")
        assert hash(Time(0.0, "dur")) == hash(Time(-0.0, "dur"))

    def test_in_a_set(self):
        assert len({Time(5, "ba"), Time(5, "batch"), Time(5, "ep")}) == 2


class TestArithmetic:
    @pytest.mark.parametrize("other", [Time(3, "ba"), "3ba", 3])
    def test_with_each_type(self, other):
        time = Time(10, "ba")
        assert time + other == Time(13, "ba")
        assert other + time == Time(13, "ba")
        assert time - other == Time(7, "ba")
        assert other - time == Time(-7, "ba")
        assert time % other == Time(1, "ba")

    def test_remainder_reflected(self):
        assert 7 % Time(5, "ba") == Time(2, "ba")
        assert isinstance(7 % Time(5, "ba"), Time)

    def test_unary(self):
        time = Time(5, "ba")
        assert +time == time
        assert -time == Time(-5, "ba")
        assert int(time) == 5
        assert float(time) == 5.0
        assert type(float(time)) is float
        assert int(Time(0.75, "dur")) == 0

    def test_scale_by_a_number(self):
        assert Time(11, "ep") * 0.5 == 0.5 * Time(11, "ep") == Time(5, "ep")
        assert Time(-11, "ep") * 0.5 == Time(-5, "ep")
        assert Time(11, "ep") * 3 == Time(33, "ep")
        assert Time(11, "ep") / 2 == Time(5, "ep")
        assert Time(0.5, "dur") * 3 == Time(1.5, "dur")
        assert Time(1, "dur") / 4 == Time(0.25, "dur")
        assert Time(10**18 + 1, "tok") * 3 == Time(3 * 10**18 + 3, "tok")

    @pytest.mark.parametrize("share", [Time(0.5, "dur"), "0.5dur"])
    def test_fraction_of_a_time(self, share):
        assert Time(11, "ep") * share == Time(5, "ep")
        assert share * Time(11, "ep") == Time(5, "ep")
        assert Time(0.5, "dur") * share == Time(0.25, "dur")

    @pytest.mark.parametrize("other", [Time(40, "ba"), "40ba"])
    def test_ratio_is_a_fraction(self, other):
        assert Time(10, "ba") / other == Time(0.25, "dur")
        assert other / Time(10, "ba") == Time(4, "dur")

    def test_number_over_time_is_a_fraction(self):
        assert 5 / Time(10, "ba") == Time(0.5, "dur")

    def test_product_of_two_counts(self):
        with pytest.raises(RuntimeError, match=r"Cannot multiply 5ba by 2ba.*'0\.5dur'"):
            Time(5, "ba") * Time(2, "ba")

    @pytest.mark.parametrize("operation", [operator.add, operator.sub, operator.mod, operator.truediv])
    def test_units_differ(self, operation):
        with pytest.raises(RuntimeError, match="different units"):
            operation(Time(5, "ba"), Time(2, "ep"))

    @pytest.mark.parametrize("operation", [operator.add, operator.sub, operator.mod, operator.truediv, operator.mul])
    @pytest.mark.parametrize("other", [None, True, object()])
    def test_other_types(self, operation, other):
        with pytest.raises(TypeError, match="unsupported operand"):
            operation(Time(5, "ba"), other)
        with pytest.raises(TypeError, match="unsupported operand"):
            operation(other, Time(5, "ba"))

    def test_adding_a_fraction_to_a_count(self):
        with pytest.raises(TypeError, match="integer"):
            Time(5, "ba") + 1.5

    def test_division_by_zero(self):
        with pytest.raises(ZeroDivisionError):
            Time(5, "ba") / Time(0, "ba")

    @given(same_unit(3))
    def test_addition_laws(self, triple):
        a, b, c = triple
        assert (a + b) - b == a
        assert a + b == b + a
        assert (a + b) + c == a + (b + c)
        assert a - b == -(b - a)
        assert (a < b) == (a + c < b + c)

    @given(same_unit(2).filter(lambda pair: pair[1].value != 0))
    def test_remainder_is_that_of_numbers(self, pair):
        a, b = pair
        assert (a % b).value == a.value % b.value
        assert ((a - a % b) % b).value == 0

    @given(st.integers(0, 10**9), st.floats(0, 1))
    def test_fraction_never_exceeds_the_total(self, count, share):
        time = Time(count, "sp")
        assert 0 <= (time * share).value <= count
        assert time * share == time * Time(share, "dur") == Time(share, "dur") * time


def test_module_gives_timestamp():
    from composer.core.time import Timestamp
    from composer.core.timestamp import Timestamp as Original

    assert Timestamp is Original
    assert all(hasattr(time_module, name) for name in time_module.__all__)
    with pytest.raises(AttributeError, match="no attribute 'Timestmap'"):
        time_module.Timestmap  # noqa: B018


@pytest.mark.parametrize("first", ["time", "timestamp"])
def test_modules_import_in_any_order(first):
    code = f"import composer.core.{first}; from composer.core.time import Timestamp; print(Timestamp().batch)"
    assert after_torch.run(code).stdout == "0ba\n"


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("1.5h", "Write '1h30m'"), ("1min", "Write '1m'"), ("2 hours", "Write '2h'"), ("90 minutes", "Write '1h30m'"),
        ("1.5 days", "Write '1d12h'"), ("1_000mins", "Write '16h40m'"), ("10 steps", "Did you mean 'ba' (batch)?"),
        ("10it", "Did you mean 'ba' (batch), or 'iter' (iteration)?"), ("1epoc", "Did you mean 'ep' (epoch)?"),
        ("1e300h", "'h' is not a unit of time"), ("-1h", "'h' is not a unit of time"), ("0.0001s", "is not a unit"),
    ],
)  # fmt: skip
def test_units_of_other_libraries(text, hint):
    with pytest.raises(ValueError) as raised:
        Time.from_timestring(text)
    assert hint in str(raised.value)
    if hint.startswith("Write"):
        assert Time.from_timestring(hint.split("'")[1]).unit is TimeUnit.SECOND
