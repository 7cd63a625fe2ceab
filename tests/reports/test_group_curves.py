from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from composer.core.metric_target import MetricTarget
from composer.history import Series
from composer.reports.group_curves import aligned
from composer.reports.measures import time_to_target
from composer.statistics import mean_band


def series(steps: list[int], values: list[float], seconds: list[float] | None = None) -> Series:
    return Series("x", np.array(steps), np.array(values), seconds=None if seconds is None else np.array(seconds))


def test_curves_meet_where_all_have_values() -> None:
    grid, values = aligned([series([0, 10, 20], [0, 1, 2]), series([5, 10, 40], [1, 1, 7])], "step")
    assert grid.tolist() == [5, 10, 20]
    assert values.tolist() == [[0.5, 1, 2], [1, 1, 3]]
    assert len(aligned([series([0, 1], [0, 0]), series([2, 3], [0, 0])], "step")[0]) == 0


def test_nan_is_not_bridged() -> None:
    grid, values = aligned([series([0, 10, 20, 30], [0, 1, np.nan, 3]), series([0, 15, 30], [0, 0, 0])], "step")
    assert grid.tolist() == [0, 10, 15, 20, 30]
    assert np.isnan(values[0]).tolist() == [False, False, True, True, False]


@given(st.lists(st.integers(0, 5000), min_size=2, max_size=3000, unique=True), st.integers(2, 50))
def test_means_of_buckets_stay_within_the_values(steps: list[int], points: int) -> None:
    ordered = sorted(steps)
    curve = series(ordered, [float(step) for step in ordered])
    grid, values = aligned([curve, curve], "step", points)
    assert len(grid) <= max(points, 2)
    np.testing.assert_allclose(values[0], grid)
    assert (np.diff(grid) > 0).all()


def test_the_band_of_means() -> None:
    pytest.importorskip("scipy")
    generator = np.random.default_rng(0)
    # 95 % of the intervals of 400 points of 5 runs hold the true mean.
    low, high = mean_band(generator.normal(size=(5, 400)))
    assert 0.92 <= np.mean((low <= 0) & (high >= 0)) <= 0.99
    shifted, _ = mean_band(generator.normal(size=(5, 1)) * 0 + 7)
    assert shifted.item() == 7
    assert np.isnan(mean_band(np.array([[1.0, np.nan], [2.0, 2.0]]))[0]).tolist() == [False, True]
    with pytest.raises(ValueError, match="at least 2 curves"):
        mean_band(np.zeros((1, 3)))


def test_time_to_a_target_with_evaluations_at_the_same_time() -> None:
    curve = series([1, 2, 2, 3], [0.2, 0.6, 0.8, 0.9], [1.0, 2.0, 2.0, np.nan])
    found = time_to_target(curve, MetricTarget("x", 0.5, "max"))
    assert found is not None
    assert (found.time, found.low, found.high, found.limit) == (1.5, 1.0, 2.0, 2.0)
    rounded = time_to_target(series([1, 2], [0.5, float(np.float32(0.95))], [1.0, 2.0]), MetricTarget("x", 0.95, "max"))
    assert rounded is not None
    assert rounded.is_reached
    missed = time_to_target(curve, MetricTarget("x", 0.1, "min"))
    assert missed is not None
    assert (missed.time, missed.limit) == (None, 2.0)
    assert time_to_target(series([1], [0.5]), MetricTarget("x", 0.5, "max")) is None
