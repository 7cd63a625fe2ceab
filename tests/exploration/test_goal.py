"""Goals in the forms in which they are written."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from composer.exploration.durations import as_seconds
from composer.exploration.goal import Goal
from composer.exploration.goal_options import GoalOptions


def test_a_target_is_reached_from_its_side() -> None:
    assert Goal.parse("acc>=0.9").is_reached(0.9)
    assert not Goal.parse("acc>=0.9").is_reached(0.89)
    assert Goal.parse("eval/CrossEntropy <= 2e-1") == Goal("eval/CrossEntropy", False, target=0.2)
    assert not Goal.parse("acc>=0.9").is_reached(math.nan)


@given(st.floats(-1e6, 1e6), st.sampled_from([True, False]), st.floats(0, 99))
def test_within_is_on_the_worse_side_of_the_final_value(final: float, maximize: bool, percent: float) -> None:
    goal = Goal.within(f"{percent}%", "metric", final, maximize)
    assert goal.is_reached(final)
    assert goal.target is not None
    assert math.isclose(abs(goal.target - final), abs(final) * percent / 100, rel_tol=1e-6, abs_tol=1e-9)


def test_the_direction_is_that_of_the_name() -> None:
    assert not Goal.within("10%", "eval/CrossEntropy", 2.0).maximize
    assert Goal.quality_at("90s", "MulticlassAccuracy").seconds == 90
    with pytest.raises(ValueError, match=r"metric='Spread': neither .* Pass maximize=True or maximize=False"):
        Goal.quality_at("90s", "Spread")
    with pytest.raises(ValueError, match=r"metric='Spread': neither .* or a target such as METRIC>=VALUE"):
        GoalOptions(within="5%", metric="Spread").goal([("eval/Spread", None)])


@pytest.mark.parametrize("share", ["0.5", "100%", "-1%", "half", "%", "nan%"])
def test_shares_that_are_none(share: str) -> None:
    with pytest.raises(ValueError, match="within must be a percentage"):
        Goal.within(share, "accuracy", 0.9)


def test_nothing_is_near_to_what_is_not_finite() -> None:
    with pytest.raises(ValueError, match="final accuracy of the unchanged run is nan"):
        Goal.within("1%", "accuracy", math.nan)


@pytest.mark.parametrize(
    ("text", "seconds"), [("90s", 90), ("10m", 600), ("1h30m", 5400), ("0.5h", 1800), (7, 7), ("7", 7)]
)
def test_durations(text: str | float, seconds: float) -> None:
    assert as_seconds("budget", text) == seconds


@pytest.mark.parametrize("text", ["", "m", "10 minutes", "-3s", "1h30", "0s", "inf", "nan", "1e400s", math.inf, -1])
def test_durations_that_are_none(text: str | float) -> None:
    with pytest.raises(ValueError, match="budget must be a positive duration"):
        as_seconds("budget", text)


@pytest.mark.parametrize("value", ["nan", "inf", "-inf"])
def test_a_target_is_a_finite_number(value: str) -> None:
    with pytest.raises(ValueError, match="target must be METRIC>=VALUE"):
        Goal.parse(f"MulticlassAccuracy>={value}")
