"""Times as places in a run."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from composer.core.time import Time, TimeUnit
from composer.core.timestamp import Timestamp
from composer.optim.schedule_times import Horizon, Span, truncate_to_int
from tests.optim.schedules import state_of


def lengths(horizon: Horizon, *times: str) -> list[tuple[str, float]]:
    spans = [horizon.span(Time.from_timestring(time)) for time in times]
    return [(str(span.unit), span.length) for span in spans]


def test_epochs_are_batches_where_their_length_is_known() -> None:
    horizon = Horizon.of_run("10ep", epoch_length=30)
    expected = [("ba", 60), ("ba", 75), ("ba", 5), ("sp", 64), ("tok", 1_000_000_000), ("sec", 90), ("iter", 2)]
    assert lengths(horizon, "2ep", "0.25dur", "5ba", "64sp", "1e9tok", "90s", "2iter") == expected
    assert horizon.total == Span(TimeUnit.BATCH, 300)


def test_epochs_of_unknown_length_stay_epochs_and_may_be_parts() -> None:
    assert lengths(Horizon.of_run("5ep"), "2ep", "0.1dur") == [("ep", 2), ("ep", 0.5)]


@pytest.mark.parametrize(
    ("run", "expected"),
    [("100ba", ("ba", 30)), ("1e6tok", ("tok", 300_000)), ("99sp", ("sp", 29)), ("1m", ("sec", 18))],
)
def test_shares_are_counted_in_the_unit_of_the_run(run, expected) -> None:
    assert lengths(Horizon.of_run(run), "0.3dur") == [expected]


def test_the_ratio_applies_to_times_but_not_to_shares() -> None:
    horizon = Horizon.of_run("50ba", epoch_length=10, ratio=0.5)
    assert lengths(horizon, "15ba", "3ep", "0.5dur") == [("ba", 7), ("ba", 15), ("ba", 25)]
    assert horizon.span(Time(15, "ba"), scaled=False).length == 15


@given(percent=st.integers(0, 100), hundreds=st.integers(1, 10**6))
def test_a_share_that_is_whole_is_not_cut_by_rounding(percent, hundreds) -> None:
    assert lengths(Horizon.of_run(f"{100 * hundreds}ba"), f"{percent / 100}dur") == [("ba", percent * hundreds)]


@given(st.floats(0, 1e12))
def test_whole_part(amount) -> None:
    assert abs(truncate_to_int(amount) - amount) < 1
    assert truncate_to_int(amount) <= amount * (1 + 1e-12)


def test_of_a_state() -> None:
    state = state_of("3ep", epoch_length=4)
    assert Horizon.of(state, 2.0) == Horizon.of_run("3ep", 4, 2.0)
    assert Horizon.of(state_of(None)).total is None


@pytest.mark.parametrize("ratio", [0, -1.0, float("inf"), float("nan")])
def test_wrong_ratios(ratio) -> None:
    with pytest.raises(ValueError, match="scale_schedule_ratio must be"):
        Horizon.of_run("10ba", ratio=ratio)
    with pytest.raises(TypeError, match="scale_schedule_ratio must be a number"):
        Horizon.of_run("10ba", ratio="2")


def test_shares_need_an_end() -> None:
    with pytest.raises(ValueError, match=r"'0\.5dur' is a fraction of the run, whose duration is unknown\. Set"):
        lengths(Horizon.of_run(None), "0.5dur")
    assert lengths(Horizon.of_run(None), "5ba") == [("ba", 5)]


def test_parts() -> None:
    horizon = Horizon.of_run("100ba", epoch_length=10)
    rest = horizon.after(horizon.span(Time(2, "ep")))
    assert rest.total == Span(TimeUnit.BATCH, 80, 20)
    assert rest.span(Time(0.5, "dur")) == Span(TimeUnit.BATCH, 40, 20)
    assert rest.span(Time(1, "ep")) == Span(TimeUnit.BATCH, 10, 20)
    assert rest.until(horizon.span(Time(50, "ba"))).total == Span(TimeUnit.BATCH, 30, 20)
    assert rest.after(rest.span(Time(30, "ba"))).total == Span(TimeUnit.BATCH, 50, 50)
    with pytest.raises(ValueError, match=r"'5tok' counts from a time given in 'ba', which is unknown in 'tok'"):
        rest.span(Time(5, "tok"))


def test_the_rest_of_a_run_in_another_unit_has_no_shares() -> None:
    horizon = Horizon.of_run("100ba")
    rest = horizon.after(horizon.span(Time(50, "tok")))
    with pytest.raises(ValueError, match=r"fraction of the run after '50tok', but .* 'tok'"):
        rest.span(Time(0.5, "dur"))
    assert rest.span(Time(5, "tok")) == Span(TimeUnit.TOKEN, 5, 50)


def test_what_is_longer() -> None:
    horizon = Horizon.of_run("100ba")
    assert horizon.exceeded_by(Span(TimeUnit.BATCH, 101))
    assert not horizon.exceeded_by(Span(TimeUnit.BATCH, 100))
    assert not horizon.exceeded_by(Span(TimeUnit.TOKEN, 101))
    assert not Horizon.of_run(None).exceeded_by(Span(TimeUnit.BATCH, 1))


@pytest.mark.parametrize("unit", [unit for unit in TimeUnit if unit is not TimeUnit.DURATION])
def test_the_beginning_of_a_stretch(unit) -> None:
    span = Span(unit, 5, start=7)
    begin = span.beginning()
    assert begin.count(unit) == 7
    assert not span.reached(begin)
    assert span.reached(Span(unit, 0, 12).beginning())
    assert (str(span), span.stop) == (f"5{unit}", 12)
    assert sum(bool(value) for value in begin.state_dict().values()) == 1
    assert isinstance(begin, Timestamp)
