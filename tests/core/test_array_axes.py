"""Names of the rows and columns of arrays."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from composer.core.array_axes import ArrayAxes, is_array


@given(st.lists(st.sampled_from(["a", "b", "a (1)", "a (2)", ""]), min_size=1, max_size=6))
def test_labels_differ(names: list[str]) -> None:
    labels = ArrayAxes(tuple(names)).labels(len(names))
    assert len(set(labels)) == len(names)
    assert labels[0] == names[0]


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (torch.zeros(2, 2), True),
        (torch.zeros(1, 1), False),
        (torch.zeros(0), False),
        (np.zeros(3), True),
        (np.float32(1), False),
        ((torch.zeros(2), torch.zeros(3)), True),
        ([torch.zeros(2), "text"], False),
        ("text", False),
        ({"a": 1}, False),
        (None, False),
    ],
)
def test_what_is_an_array(value, expected) -> None:
    assert is_array(value) is expected
