"""Digests are equal if and only if values are."""

from __future__ import annotations

import itertools
import random

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from composer.verification.digests import digest, row_digest


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


def test_counters_count_with_their_next_number() -> None:
    one, other = itertools.count(3), itertools.count(3)
    assert digest([one]) == digest([other])
    next(other)
    assert digest([one]) != digest([other])


def test_objects_that_refer_to_each_other() -> None:
    one: dict[str, object] = {"value": 1}
    one["self"] = one
    assert digest(one) == digest(one)


@given(st.lists(st.integers(1, 9), min_size=1, max_size=8), st.integers(0, 5), st.integers(0, 5))
def test_padding_of_a_row_does_not_count(tokens, one, other) -> None:
    rows = [torch.tensor([[*tokens, *[0] * padding]]) for padding in (one + 1, other + 1)]
    assert row_digest(rows[0]) == row_digest(rows[1])
    assert row_digest(rows[0]) != row_digest(torch.tensor([[*tokens[:-1], tokens[-1] + 1, 0]]))
