from __future__ import annotations

import numpy as np
import pytest

from composer.history import Series


def series(values: list[float], **times: np.ndarray) -> Series:
    return Series("loss", np.arange(len(values)), np.array(values), **times)


def test_some_of_the_values() -> None:
    whole = series([3.0, np.nan, 1.0], seconds=np.array([0.0, 1.0, 2.0]))
    part = whole.finite()
    assert part.step.tolist() == [0, 2]
    assert part.values.tolist() == [3, 1]
    assert part.over("seconds").tolist() == [0, 2]
    assert part.epoch is None
    assert len(whole[1:]) == 2
    assert np.isnan(series([]).last)


def test_an_integer_is_no_choice_of_values() -> None:
    with pytest.raises(TypeError, match=r"series\[-1\]: choose values with a slice.*series\.values\[-1\]"):
        series([1.0])[-1]
    with pytest.raises(TypeError, match="choose values with a slice"):
        list(series([1.0]))  # pyright: ignore[reportArgumentType]


def test_times_that_only_one_has_are_unknown_in_the_other() -> None:
    both = series([1.0], epoch=np.array([4.0])).followed_by(series([2.0, 3.0], seconds=np.array([5.0, 6.0])))
    assert both.values.tolist() == [1, 2, 3]
    np.testing.assert_equal(both.epoch, [4, np.nan, np.nan])
    np.testing.assert_equal(both.seconds, [np.nan, 5, 6])
    assert both.sample is None


def test_units() -> None:
    with pytest.raises(ValueError, match=r"unit must be one of .*'second'. Did you mean 'seconds'\?"):
        series([1.0]).over("second")
    with pytest.raises(ValueError, match=r"The log has no 'token' of 'loss'; it has 'step', 'epoch'\."):
        series([1.0], epoch=np.zeros(1)).over("token")
