"""Parse times from strings and numbers."""

import datetime
import math
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from composer.core.time import Time, TimeUnit, ensure_time

COUNTED = [unit for unit in TimeUnit if unit is not TimeUnit.DURATION]

counts = st.integers(-(10**15), 10**15)
shares = st.floats(-1e6, 1e6)
counted_times = st.builds(Time, counts, st.sampled_from(COUNTED))
times = st.one_of(counted_times, st.builds(Time, shares, st.just(TimeUnit.DURATION)))


@st.composite
def same_unit(draw: st.DrawFn, n: int) -> list[Time]:
    unit = draw(st.sampled_from(COUNTED))
    return [Time(draw(counts), unit) for _ in range(n)]


class TestParsing:
    @pytest.mark.parametrize(
        ("text", "value", "unit"),
        [
            ("10ep", 10, "ep"),
            ("0.5dur", 0.5, "dur"),
            (".5dur", 0.5, "dur"),
            ("1dur", 1.0, "dur"),
            ("1e-05dur", 1e-5, "dur"),
            ("1_000ba", 1000, "ba"),
            ("1e9tok", 10**9, "tok"),
            ("1.5e3sp", 1500, "sp"),
            ("1E3SP", 1000, "sp"),
            ("3iter", 3, "iter"),
            ("500sec", 500, "sec"),
            ("-5ba", -5, "ba"),
            ("+5ba", 5, "ba"),
            (" 10 ep ", 10, "ep"),
            ("10 epochs", 10, "ep"),
            ("1batch", 1, "ba"),
            ("10.0ep", 10, "ep"),
            ("12345678901234567891tok", 12345678901234567891, "tok"),
        ],
    )
    def test_numbers(self, text, value, unit):
        assert Time.from_timestring(text) == Time(value, unit)

    @pytest.mark.parametrize(
        ("text", "seconds"),
        [
            ("30s", 30),
            ("2m", 120),
            ("1h", 3600),
            ("1h30m", 5400),
            ("90m", 5400),
            ("24h", 86400),
            ("1h90m", 9000),
            ("100s", 100),
            ("1d", 86400),
            ("2d12h", 216000),
            ("1h2m3s", 3723),
            ("1h3s", 3603),
            ("1H 30M", 5400),
            ("0s", 0),
        ],
    )
    def test_wall_clock(self, text, seconds):
        assert Time.from_timestring(text) == Time.from_timedelta(text) == Time(seconds, "sec")

    @given(days=st.integers(0, 500), rest=st.integers(0, 86399))
    def test_wall_clock_agrees_with_timedelta(self, days, rest):
        hours, rest = divmod(rest, 3600)
        minutes, seconds = divmod(rest, 60)
        delta = datetime.timedelta(days=days, hours=hours, minutes=minutes, seconds=seconds)
        assert Time.from_timestring(f"{days}d{hours}h{minutes}m{seconds}s") == Time.from_timedelta(delta)

    def test_timedelta_with_a_fraction(self):
        with pytest.raises(TypeError, match="integer"):
            Time.from_timedelta(datetime.timedelta(seconds=0.5))

    @pytest.mark.parametrize("text", ["5", "1e3", " 5 ", "-5", "1_0"])
    def test_no_unit(self, text):
        with pytest.raises(ValueError, match=r"has no unit. Write '.*ep'") as error:
            Time.from_timestring(text)
        assert f"'{text.strip()}ep'" in str(error.value)

    @pytest.mark.parametrize("text", ["ep", "ba5", "5ba3", "1.2.3ep", "1__0e", "30m1h", "e5ba", "nan dur", "--5ba"])
    def test_no_time(self, text):
        with pytest.raises(ValueError):
            Time.from_timestring(text)

    def test_unknown_unit(self):
        with pytest.raises(ValueError, match=r"'epp' is not a unit of time. Did you mean 'ep'\?"):
            Time.from_timestring("5epp")

    def test_fraction_of_a_counted_unit(self):
        with pytest.raises(TypeError, match=r"epoch units must be an integer, but got 1\.5"):
            Time.from_timestring("1.5ep")

    def test_overflow(self):
        with pytest.raises(ValueError, match="finite"):
            Time.from_timestring("1e999ba")

    @pytest.mark.parametrize("text", ["10ep", "5", "h", ""])
    def test_timedelta_requires_a_wall_clock(self, text):
        with pytest.raises(ValueError, match="'1h30m'"):
            Time.from_timedelta(text)

    @pytest.mark.parametrize("text", [5, None, 1.5])
    def test_timestring_requires_a_string(self, text):
        with pytest.raises(TypeError, match="must be a string"):
            Time.from_timestring(text)

    @given(times)
    def test_formatted_values_parse_back(self, time):
        again = Time.from_timestring(str(time))
        assert again == time
        assert (type(again.value), again.unit) == (type(time.value), time.unit)

    @given(st.text())
    def test_arbitrary_text_parses_or_raises(self, text):
        try:
            time = Time.from_timestring(text)
        except (ValueError, TypeError):
            return
        assert Time.from_timestring(str(time)) == time


class TestInput:
    def test_time_is_returned_unchanged(self):
        time = Time(5, "ba")
        assert Time.from_input(time) is time
        assert ensure_time(time, "ep") is time

    @pytest.mark.parametrize("unit", ["ep", TimeUnit.EPOCH, "epochs"])
    def test_number_takes_the_unit(self, unit):
        assert Time.from_input(3, unit) == ensure_time(3, unit) == Time(3, "ep")

    def test_fraction_of_a_run(self):
        assert ensure_time(0.25, "dur") == Time(0.25, "dur")

    def test_string_keeps_its_unit(self):
        assert ensure_time("5ba", "ep") == Time(5, "ba")

    def test_number_without_unit(self):
        with pytest.raises(RuntimeError, match="'5ep'"):
            Time.from_input(5)

    @pytest.mark.parametrize("value", [None, True, [5], object(), datetime.timedelta(1)])
    def test_other_types(self, value):
        with pytest.raises(TypeError, match=r"Expected a time.*'10ep'"):
            ensure_time(value, "ep")

    @pytest.mark.parametrize("value", [None, [123], object()])
    @pytest.mark.parametrize("error", [RuntimeError, TypeError])
    def test_error_is_caught_as_either_class(self, value, error):
        with pytest.raises(error, match="Expected a time"):
            Time.from_input(value)

    def test_an_empty_string(self):
        for text in ("", " "):
            time = Time.from_input(text)
            assert (time.value, time.unit) == (0, TimeUnit.SECOND)
            assert Time.from_timestring(text) == time
            with pytest.raises(ValueError, match="Write a number and a unit"):
                ensure_time(text, "ep")
        with pytest.raises(ValueError, match="max_duration='' is not valid"):
            ensure_time("", "ep", "max_duration")

    def test_fraction(self):
        with pytest.raises(TypeError, match="integer"):
            ensure_time(1.5, "ep")

    def test_string_without_unit(self):
        with pytest.raises(ValueError, match="'5ep'"):
            ensure_time("5", "ep")


@given(
    st.sets(st.sampled_from(list(TimeUnit)), min_size=1, max_size=6).map(sorted),
    st.sampled_from(["7", "0.5", "7ep", "7 hours", "abc", "7 steps", "2.5ba"]),
)
def test_what_errors_suggest_is_accepted(units, text) -> None:
    units = [TimeUnit(unit) for unit in units]
    try:
        ensure_time(text, "ba", "every", units)
    except (TypeError, ValueError) as error:
        suggestions = re.findall(r"(?:Write|such as) ((?:'[^']+'(?:, | or )?)+)", str(error))
        assert suggestions
        for each in re.findall(r"'([^']+)'", suggestions[-1]):
            assert ensure_time(each, "ba", "every", units).unit in units
    else:
        assert TimeUnit.EPOCH in units


def test_only_accepted_units_are_suggested() -> None:
    units = (TimeUnit.BATCH, TimeUnit.EPOCH)
    with pytest.raises(
        ValueError,
        match=r"^every='7' is not valid\. The time '7' has no unit\. every is a time in batches or epochs, such as",
    ):
        ensure_time("7", "ba", "every", units)
    with pytest.raises(
        ValueError, match=r"^every must be in batches or epochs, such as '10ba' or '1ep'; got '7tok'\.$"
    ):
        ensure_time("7tok", "ba", "every", units)
    with pytest.raises(ValueError, match=r"every is a time in batches or epochs, such as '10ba' or '1ep'\.$"):
        ensure_time("7 foo", "ba", "every", units)
    with pytest.raises(ValueError, match=r"'1\. 5ba' is not a time\. every is a time"):
        ensure_time("1. 5ba", "ba", "every", units)


@pytest.mark.parametrize("units", [tuple(TimeUnit), (TimeUnit.BATCH,)], ids=["all", "one"])
@pytest.mark.parametrize("value", [True, None, [5], math.nan, math.inf, 1.5])
@pytest.mark.parametrize("argument", ["every", None])
def test_errors_have_public_types_and_whole_sentences(value, units, argument) -> None:
    with pytest.raises((TypeError, ValueError)) as caught:
        ensure_time(value, "ba", argument, units)
    assert type(caught.value) in (TypeError, ValueError)
    assert ".." not in str(caught.value)
    assert str(caught.value).endswith(".")
