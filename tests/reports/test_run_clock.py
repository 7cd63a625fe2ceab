from __future__ import annotations

import numpy as np
import pytest

from composer.history import History, Series
from composer.reports.run_clock import RunClock


def test_the_clock_is_that_of_all_metrics() -> None:
    train = Series("loss", np.array([0, 10, 20]), np.zeros(3), sample=np.array([0.0, 320.0, 640.0]))
    eval_ = Series("accuracy", np.array([20, 40]), np.zeros(2), seconds=np.array([2.0, 4.0]), token=np.zeros(2))
    clock = RunClock(History("night", {"loss": train, "accuracy": eval_}))
    assert clock.units == ["sample", "seconds"]  # there are no tokens
    samples = clock.at(np.array([5, 20, 100]), "sample")
    assert samples.tolist() == [160, 640, 640]
    assert samples.dtype == np.int64
    assert clock.at(np.array([30]), "seconds").tolist() == [3.0]


def test_times_that_are_unknown_or_go_back_do_no_harm() -> None:
    first = Series("a", np.array([0, 10, 20]), np.zeros(3), seconds=np.array([0.0, np.nan, 2.0]))
    second = Series("b", np.array([20, 15, 30]), np.zeros(3), seconds=np.array([2.5, 2.2, 2.1]))
    clock = RunClock(History("night", {"a": first, "b": second}))
    found = clock.at(np.arange(31), "seconds")
    assert np.isfinite(found).all()
    assert (np.diff(found) >= 0).all()
    assert clock.at(np.array([20]), "seconds").tolist() == [2.5]


@pytest.mark.parametrize("history", [History("empty"), History("a", {"x": Series("x", np.array([1]), np.zeros(1))})])
def test_a_log_without_times_has_steps_only(history: History) -> None:
    assert RunClock(history).units == []
