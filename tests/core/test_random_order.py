"""Random permutations that can be sliced."""

from __future__ import annotations

import math
from collections import Counter

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from composer.core import random_order
from composer.core.random_order import Permutation, mix_seed

seeds = st.integers(0, 2**63 - 1)
computed = pytest.mark.parametrize("whole", [1 << 20, 0], ids=["whole", "computed"])


@computed
@given(n=st.integers(1, 600), seed=seeds)
def test_is_a_permutation(whole, n, seed) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(random_order, "_MATERIALIZED_UP_TO", whole)
        assert sorted(Permutation(n, seed).slice(0, n)) == list(range(n))


@computed
@given(n=st.integers(1, 600), seed=seeds, data=st.data())
def test_slices_match_the_full_order(whole, n, seed, data) -> None:
    start = data.draw(st.integers(0, n + 3))
    stop = data.draw(st.integers(start, n + 5))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(random_order, "_MATERIALIZED_UP_TO", whole)
        assert Permutation(n, seed).slice(start, stop) == Permutation(n, seed).slice(0, n)[start:stop]


def test_nothing_to_order() -> None:
    assert Permutation(0, 1).slice(0, 5) == []


def test_small_orders_match_torch() -> None:
    expected = torch.randperm(100, generator=torch.Generator().manual_seed(5)).tolist()
    assert Permutation(100, 5).slice(0, 100) == expected


@pytest.mark.parametrize("n", [(1 << 20) + 1, (1 << 21) - 1, 1 << 21, 3_000_017])
def test_large_orders_are_permutations(n) -> None:
    """With halves of different sizes, of 21 bits, and of the same size, of 22."""
    order = Permutation(n, seed=3)
    numbers = np.concatenate([order.slice(start, start + n // 8) for start in range(0, n, n // 7)])
    assert np.bincount(numbers).max() == 1
    assert 0 <= numbers.min() < numbers.max() < n
    whole = np.array(order.slice(0, 1 << 18) + order.slice(n - 10, n + 10))
    assert len(whole) == (1 << 18) + 10


def test_seeds_give_unrelated_orders() -> None:
    n = (1 << 20) + 1
    one, other = (np.array(Permutation(n, seed).slice(0, 20_000)) for seed in (1, 2))
    assert (one == other).sum() < 5  # about 0.02 are expected
    assert abs(np.corrcoef(one, other)[0, 1]) < 0.03


def test_orders_are_uniform(monkeypatch) -> None:
    """Every order of four numbers comes up about as often, and places say nothing about numbers in a large one."""
    monkeypatch.setattr(random_order, "_MATERIALIZED_UP_TO", 0)
    draws = 4800
    counts = Counter(tuple(Permutation(4, seed).slice(0, 4)) for seed in range(draws))
    expected = draws / math.factorial(4)
    assert len(counts) == math.factorial(4)
    squares = sum((count - expected) ** 2 / expected for count in counts.values())
    assert squares < 60  # chi-square with 23 degrees of freedom: above this once in 30,000
    n = 1 << 16
    numbers = np.array(Permutation(n, 9).slice(0, n))
    assert abs(np.corrcoef(np.arange(n), numbers)[0, 1]) < 5 / math.sqrt(n)
    assert abs(np.corrcoef(numbers[:-1], numbers[1:])[0, 1]) < 5 / math.sqrt(n)
    buckets = np.bincount(numbers[: n // 4] * 64 // n, minlength=64)
    assert ((buckets - n / 256) ** 2 / (n / 256)).sum() < 120  # fewer than by chance, since numbers do not repeat


@given(seeds, st.integers(0, 10**6), seeds, st.integers(0, 10**6))
def test_mixed_seeds(seed, number, other, another) -> None:
    mixed = mix_seed(seed, number)
    assert 0 <= mixed < 2**63
    assert (mixed == mix_seed(other, another)) == ((seed, number) == (other, another))
    torch.Generator().manual_seed(mixed)
