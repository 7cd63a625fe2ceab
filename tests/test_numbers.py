"""Checks of numbers given as arguments."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from composer._numbers import in_unit_interval, non_negative, positive, real_number


@given(st.floats(0, 1))
def test_unit_interval_accepts(value):
    assert in_unit_interval("p", value) == value


@given(st.one_of(st.floats(max_value=0, exclude_max=True), st.floats(min_value=1, exclude_min=True), st.just(math.nan)))
def test_unit_interval_rejects(value):
    with pytest.raises(ValueError, match="p must be between 0 and 1"):
        in_unit_interval("p", value)


def test_unit_interval_gives_a_float():
    assert type(in_unit_interval("p", 1)) is float


@given(st.one_of(st.integers(), st.floats()))
def test_signs(value):
    for check, holds in ((positive, value > 0), (non_negative, value >= 0)):
        if holds:
            assert check("x", value) is value
        else:
            with pytest.raises(ValueError, match=r"^x must be"):
                check("x", value)


@pytest.mark.parametrize("value", ["1", None, True, [1], 1j, b"1"])
@pytest.mark.parametrize("check", [in_unit_interval, positive, non_negative, real_number])
def test_non_numbers(check, value):
    with pytest.raises(TypeError, match="x must be a number"):
        check("x", value)


@pytest.mark.parametrize("value", [2, np.float32(2), torch.tensor(2.0)])
def test_a_real_number_becomes_a_float(value):
    assert type(real_number("x", value)) is float
    assert real_number("x", value) == 2


def test_a_real_number_may_be_infinite_or_nan():
    assert real_number("x", math.inf) == math.inf
    assert math.isnan(real_number("x", math.nan))
