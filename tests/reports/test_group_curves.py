from __future__ import annotations

import dataclasses
import json
import re
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from composer.core.metric_target import MetricTarget
from composer.history import History, Series
from composer.reports import compare_runs
from composer.reports.group_curves import aligned, group_figure
from composer.reports.measures import time_to_target
from composer.reports.run_groups import RunGroup
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
    assert mean_band([[1.0, 2.0], [1.0, 2.0]])[0].tolist() == [1, 2]


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


def traces_of(figure: object) -> list[dict[str, Any]]:
    found = re.search(r'<script type="application/json">(.*?)</script>', str(figure), re.DOTALL)
    assert found is not None
    return json.loads(found[1])["data"]


def test_runs_without_a_common_time_are_drawn_each() -> None:
    pytest.importorskip("plotly")
    near = [series([10], [0.5], [1.0]), series([10], [0.6], [1.1])]
    apart = [series([10, 20], [0.1, 0.2], [1.0, 2.0]), series([10, 20], [0.1, 0.2], [3.0, 4.0])]
    made = [
        RunGroup(name, tuple(History(f"{name}{number}", {"x": one}) for number, one in enumerate(curves)))
        for name, curves in (("near", near), ("apart", apart))
    ]
    over_time = traces_of(group_figure(made, "x", "seconds", "x"))
    assert [(one["meta"], one.get("visible", True)) for one in over_time] == [
        *(("near0", True), ("near1", True), ("apart0", True), ("apart1", True)),
    ]
    assert [one["name"] for one in over_time if one["showlegend"]] == ["near, each run", "apart, each run"]
    over_steps = traces_of(group_figure(made, "x", "step", "x"))
    assert {"near, mean of 2", "apart, mean of 2"} <= {one.get("meta") for one in over_steps}


def test_groups_without_times_are_named_on_the_page() -> None:
    pytest.importorskip("plotly")
    pytest.importorskip("scipy")
    timed, plain = (
        History(name, {"x": series([1, 2], [0.1, 0.2], at)}) for name, at in (("a", [1.0, 2.0]), ("b", None))
    )
    assert "Not drawn over time, as their logs have no times: b." in compare_runs(timed, plain).to_html()
    assert "Not drawn over time" not in compare_runs(timed, dataclasses.replace(timed, name="c")).to_html()


def test_each_run_has_its_own_name_if_others_have_no_times() -> None:
    pytest.importorskip("plotly")
    pytest.importorskip("scipy")
    curves = [series([1, 2], [0.1, 0.2]), *(series([1, 2], [0.1, 0.2], [1.0, 2.0]) for _ in range(2))]
    group = RunGroup("a", tuple(History(f"run{number}", {"x": one}) for number, one in enumerate(curves)))
    shown = traces_of(group_figure([group], "x", "seconds", "x"))
    assert [one["meta"] for one in shown if one.get("visible") is False] == ["run1", "run2"]
