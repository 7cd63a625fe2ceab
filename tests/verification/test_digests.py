"""Digests are equal if and only if values are."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from composer.verification.digests import digest, of_tensor, row_digest

DTYPES = [torch.float32, torch.float64, torch.bfloat16, torch.int64, torch.int32, torch.uint8, torch.bool]


@given(st.sampled_from(DTYPES), st.lists(st.integers(0, 1), min_size=1, max_size=70), st.data())
def test_one_changed_element_changes_the_digest(dtype, values, data) -> None:
    tensor = torch.tensor(values).to(dtype)
    place = data.draw(st.integers(0, len(values) - 1))
    other = tensor.clone()
    other[place] = 1 - values[place]
    assert int(of_tensor(tensor)) == int(of_tensor(tensor.clone()))
    assert int(of_tensor(tensor)) != int(of_tensor(other))


@given(st.permutations(range(6)))
def test_the_order_of_elements_counts(order) -> None:
    tensor = torch.arange(6.0)
    assert (int(of_tensor(tensor[list(order)])) == int(of_tensor(tensor))) == (list(order) == list(range(6)))


def test_the_last_bit_counts() -> None:
    one = torch.ones(1000)
    other = one.clone()
    other[999] = torch.nextafter(other[999], torch.tensor(2.0))
    assert int(of_tensor(one)) != int(of_tensor(other))


def test_shape_and_dtype_count_in_digests_of_values() -> None:
    values = [
        torch.zeros(4),
        torch.zeros(2, 2),
        torch.zeros(4, dtype=torch.int32),
        torch.zeros(5),
        np.zeros(4),
        0,
        0.0,
        "0",
    ]
    assert len({digest(value) for value in values}) == len(values)


def test_views_and_sparse_tensors() -> None:
    square = torch.arange(9.0).reshape(3, 3)
    assert digest(square.T) == digest(square.T.contiguous())
    assert digest(square.to_sparse()) == digest(square)
    assert digest(square + 1j) != digest(square + 2j)


@pytest.mark.parametrize(
    "make", [lambda: random.Random(1), lambda: np.random.default_rng(1), lambda: torch.Generator().manual_seed(1)]
)
def test_generators_count_with_their_state(make) -> None:
    one, other = make(), make()
    assert digest({"generator": one}) == digest({"generator": other})
    torch.rand((), generator=other) if isinstance(other, torch.Generator) else other.random()
    assert digest({"generator": one}) != digest({"generator": other})


def test_objects_that_refer_to_each_other() -> None:
    one: dict[str, object] = {"value": 1}
    one["self"] = one
    assert digest(one) == digest(one)


@given(st.lists(st.integers(1, 9), min_size=1, max_size=8), st.integers(0, 5), st.integers(0, 5))
def test_padding_of_a_row_does_not_count(tokens, one, other) -> None:
    rows = [torch.tensor([[*tokens, *[0] * padding]]) for padding in (one + 1, other + 1)]
    assert row_digest(rows[0]) == row_digest(rows[1])
    assert row_digest(rows[0]) != row_digest(torch.tensor([[*tokens[:-1], tokens[-1] + 1, 0]]))
