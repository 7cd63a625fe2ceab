"""Digests of tensors are equal if and only if their bits are."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from composer.dist.tensor_digest import tensor_digest

DTYPES = [torch.float32, torch.float64, torch.bfloat16, torch.int64, torch.int32, torch.uint8, torch.bool]


@given(st.sampled_from(DTYPES), st.lists(st.integers(0, 1), min_size=1, max_size=70), st.data())
def test_one_changed_element_changes_the_digest(dtype, values, data) -> None:
    tensor = torch.tensor(values).to(dtype)
    place = data.draw(st.integers(0, len(values) - 1))
    other = tensor.clone()
    other[place] = 1 - values[place]
    assert int(tensor_digest(tensor)) == int(tensor_digest(tensor.clone()))
    assert int(tensor_digest(tensor)) != int(tensor_digest(other))


@given(st.permutations(range(6)))
def test_the_order_of_elements_counts(order) -> None:
    tensor = torch.arange(6.0)
    assert (int(tensor_digest(tensor[list(order)])) == int(tensor_digest(tensor))) == (list(order) == list(range(6)))


def test_the_last_bit_counts() -> None:
    one = torch.ones(1000)
    other = one.clone()
    other[999] = torch.nextafter(other[999], torch.tensor(2.0))
    assert int(tensor_digest(one)) != int(tensor_digest(other))
