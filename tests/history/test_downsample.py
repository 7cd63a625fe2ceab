from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from composer.history.downsample import downsample


@given(st.lists(st.floats(width=16), max_size=200), st.integers(5, 60))
def test_extremes_and_ends_stay(given_values: list[float], limit: int) -> None:
    values = np.array(given_values, dtype=np.float64)
    kept = downsample(values, limit)
    assert len(kept) <= limit
    assert (np.diff(kept) > 0).all()
    if len(values) <= limit:
        assert len(kept) == len(values)
        return
    assert (kept[0], kept[-1]) == (0, len(values) - 1)
    finite = values[np.isfinite(values)]
    if len(finite):
        shown = values[kept][np.isfinite(values[kept])]
        assert (shown.min(), shown.max()) == (finite.min(), finite.max())
    assert len(finite) == len(values) or not np.isfinite(values[kept]).all()


def test_each_bucket_keeps_its_extremes() -> None:
    values = np.random.default_rng(0).normal(size=1000)
    kept = downsample(values, 50)
    for bucket in range(10):
        inside = np.arange(bucket * 100, bucket * 100 + 100)
        chosen = np.intersect1d(kept, inside)
        assert {inside[0], inside[-1], inside[values[inside].argmin()], inside[values[inside].argmax()]} == set(chosen)


def test_bad_limit() -> None:
    with pytest.raises(ValueError, match="limit must be at least 5, the points of one bucket; got 4"):
        downsample(np.zeros(10), 4)
