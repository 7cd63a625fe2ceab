"""The microbatch size cache: halving, doubling, and known sizes of other shapes."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from composer.trainer.auto_microbatch.sizes import MicrobatchSizes, shape_of

SMALL, LARGE, OTHER = ((3, 8, 8), ()), ((3, 16, 8), ()), ((64,), ())


def test_shapes_exclude_the_batch_dimension() -> None:
    assert shape_of((torch.ones(8, 3, 4), torch.ones(8))) == ((3, 4), ())
    assert shape_of({"a": torch.ones(8, 2), "b": ["text"], "c": {"d": torch.ones(4, 5)}}) == ((2,), (5,))
    assert shape_of(torch.ones(8)) == ((),)


def test_covering_shapes() -> None:
    sizes = MicrobatchSizes()
    sizes.fail(SMALL, 8)
    assert sizes.choose(SMALL, 8) == 4
    assert sizes.choose(LARGE, 8) == 4  # is not smaller in any dimension
    assert sizes.choose(OTHER, 8) == 8
    sizes.fail(LARGE, 4)
    assert (sizes.choose(SMALL, 8), sizes.choose(LARGE, 8)) == (4, 2)


def test_batches_of_multiple_lengths_without_a_failure() -> None:
    sizes = MicrobatchSizes()
    assert [sizes.choose(SMALL, samples) for samples in (4, 8, 3)] == [4, 8, 8]
    assert not sizes.has_room(SMALL, 16)


def test_initial_size() -> None:
    sizes = MicrobatchSizes(start=4)
    assert sizes.choose(SMALL, 8) == 4
    assert sizes.has_room(SMALL, 8)
    assert not sizes.has_room(SMALL, 4)


def test_a_larger_size_is_at_most_the_batch() -> None:
    sizes = MicrobatchSizes(start=4)
    assert [sizes.choose(SMALL, samples, larger=True) for samples in (32, 6, 3)] == [8, 6, 4]
    sizes.succeed(SMALL, 6, larger=True)
    assert sizes.choose(SMALL, 32) == 6


def test_patience_grows_with_each_failure() -> None:
    sizes = MicrobatchSizes(start=4)
    waits = []
    for _ in range(9):
        count = 0
        while not sizes.is_time_to_grow:
            sizes.succeed(SMALL, 4)
            count += 1
        waits.append(count)
        sizes.fail(SMALL, 8, larger=True)
        assert sizes.choose(SMALL, 8) == 4
    assert waits == [64, 128, 256, 512, 1024, 2048, 4096, 4096, 4096]


@given(samples=st.integers(1, 1000), fits=st.integers(1, 1000))
def test_the_search_ends_at_a_size_that_fits_and_is_more_than_half_of_one_that_does_not(samples, fits) -> None:
    sizes, tried = MicrobatchSizes(), []
    while not tried or tried[-1] > fits:
        tried.append(min(sizes.choose(SMALL, samples), samples))
        if tried[-1] > fits:
            sizes.fail(SMALL, tried[-1])
    assert tried[-1] <= fits
    assert len(tried) == 1 or 2 * tried[-1] >= tried[-2] > fits
    assert len(tried) <= samples.bit_length() + 1


@pytest.mark.parametrize("size", [1, 2])
def test_size_is_at_least_one(size) -> None:
    sizes = MicrobatchSizes()
    sizes.fail(SMALL, size)
    assert sizes.choose(SMALL, 8) == 1
