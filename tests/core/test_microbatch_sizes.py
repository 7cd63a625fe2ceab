"""The microbatch size cache: halving, doubling, and known sizes of other shapes."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from composer.core.microbatch_sizes import MicrobatchSizes, Plan, shape_of

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


BATCHES = [(torch.zeros(samples, *dims), torch.zeros(samples)) for samples in (3, 8) for dims in ((2,), (4,), (2, 2))]


@given(
    start=st.one_of(st.none(), st.integers(1, 8)),
    steps=st.lists(st.tuples(st.integers(0, 5), st.sampled_from(["succeed", "larger", "fail", "begin"])), max_size=30),
)
def test_a_plan_is_never_out_of_date(start, steps) -> None:
    """Whatever happened to this shape or others since it was made."""
    sizes = MicrobatchSizes(start)
    for index, what in steps:
        for batch in BATCHES:
            samples, shape = len(batch[0]), shape_of(batch)
            planned = sizes.plan(batch, samples)
            assert planned == Plan(shape, sizes.choose(shape, samples), sizes.has_room(shape, samples))
        batch = BATCHES[index]
        samples, larger = len(batch[0]), what == "larger"
        shape, size, _ = sizes.plan(batch, samples)
        if larger:
            size = sizes.choose(shape, samples, larger=True)
        if what == "fail":
            sizes.fail(shape, min(size, samples))
        elif what == "begin":
            sizes.begin(shape, 5)
        else:
            sizes.succeed(shape, min(size, samples), larger=larger)


def test_plans_tell_batches_apart() -> None:
    """By the types of their elements, and by the number of samples, which the user may count."""
    sizes, batch = MicrobatchSizes(), (torch.zeros(8, 2), torch.zeros(8))
    sizes.fail(((2,), ()), 8)
    assert [sizes.plan(batch, samples).has_room for samples in (8, 4, 8)] == [True, False, True]
    assert sizes.plan({"x": batch[0], "y": batch[1]}, 8).size == 4
    assert sizes.plan((batch[0], batch[1].numpy()), 8) == Plan(((2,),), 8, has_room=False)


def test_a_cache_continues_with_what_another_knew() -> None:
    sizes, other = MicrobatchSizes(start=16), MicrobatchSizes()
    sizes.fail(SMALL, 12)
    sizes.fail(SMALL, 8, larger=True)
    sizes.choose(OTHER, 9)
    sizes.succeed(SMALL, 4)
    sizes.room_left = True
    other.load_state_dict(sizes.state_dict())
    assert other.state_dict() == sizes.state_dict()
    assert [other.choose(shape, 32) for shape in (SMALL, LARGE, OTHER)] == [4, 4, 16]
    waits = []
    for one in (sizes, other):
        count = 0
        while not one.is_time_to_grow:
            one.succeed(SMALL, 4)
            count += 1
        waits.append(count)
    assert waits == [127, 127]
