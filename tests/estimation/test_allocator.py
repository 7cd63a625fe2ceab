"""The model of the caching allocator: documented rules, and properties of arbitrary logs."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from composer.estimation.allocator import CachingAllocator, DeviceMemoryError, Replay, replay
from composer.memory.allocations import Allocation, AllocationLog

MIB = 2**20


def log_of(sizes: list[int], events: list[tuple[int, bool]]) -> AllocationLog:
    return AllocationLog([Allocation(size) for size in sizes], events)


@pytest.mark.parametrize(
    "size, allocated, reserved",
    [
        (1, 512, 2 * MIB),
        (513, 1024, 2 * MIB),
        (MIB, MIB, 2 * MIB),
        (MIB + 1, MIB + 512, 20 * MIB),
        (10 * MIB - 512, 10 * MIB - 512, 20 * MIB),
        (10 * MIB, 10 * MIB, 10 * MIB),
        (21 * MIB, 21 * MIB, 22 * MIB),
    ],
)
def test_sizes_of_blocks_and_segments(size: int, allocated: int, reserved: int) -> None:
    allocator = CachingAllocator()
    allocator.allocate(size)
    # Of a large block, what remains is split off only above 1 MiB.
    expected = 22 * MIB if reserved == 22 * MIB else allocated
    assert (allocator.allocated, allocator.reserved) == (expected, reserved)


def test_small_and_large_blocks_share_no_segment() -> None:
    allocator = CachingAllocator()
    allocator.release(allocator.allocate(15 * MIB))
    allocator.allocate(512)
    assert allocator.reserved == 18 * MIB


def test_best_fit_takes_the_smallest_block_and_splits_it() -> None:
    allocator = CachingAllocator()
    large, small = allocator.allocate(40 * MIB), allocator.allocate(24 * MIB)
    allocator.release(large)
    allocator.release(small)
    assert allocator.allocate(20 * MIB) == small
    assert allocator.allocate(4 * MIB) == small + 20 * MIB
    assert allocator.reserved == 64 * MIB


def test_neighbors_are_merged() -> None:
    allocator = CachingAllocator()
    blocks = [allocator.allocate(5 * MIB) for _ in range(4)]
    for index in (0, 2, 1, 3):
        allocator.release(blocks[index])
    assert allocator.allocate(20 * MIB) == blocks[0]
    assert allocator.reserved == 20 * MIB


def test_streams_share_no_segment() -> None:
    for expandable in (False, True):
        allocator = CachingAllocator(expandable=expandable)
        block = allocator.allocate(4 * MIB)
        allocator.release(block)
        assert allocator.allocate(3 * MIB, stream=1) != block
        assert allocator.reserved == 40 * MIB
        assert allocator.allocate(3 * MIB) == block and allocator.reserved == 40 * MIB


def test_batches_have_segments_of_their_own_and_one_is_there_before_the_last_is_released() -> None:
    """The trainer copies them on a side stream, into memory that the step does not use afterwards."""
    sizes = [20 * MIB, 12 * MIB, 12 * MIB, 12 * MIB, 12 * MIB]
    log = log_of(sizes, [(0, True), (1, True), (2, True), (2, False), (1, False), (3, True), (4, True)])
    assert replay(log).reserved == 20 * MIB + 2 * 12 * MIB
    for index in (1, 3):
        log.allocations[index].role = "batch"
    # The parameters, two batches, and a block that both activations take.
    found = replay(log)
    assert (found.reserved, found.allocated) == (20 * MIB + 3 * 12 * MIB, 20 * MIB + 2 * 12 * MIB)
    log.events += [(3, False), (1, True)]  # the third batch takes the memory of the first
    assert replay(log).reserved == found.reserved


def test_free_segments_are_given_back_before_memory_runs_out() -> None:
    allocator = CachingAllocator(limit=50 * MIB)
    allocator.release(allocator.allocate(30 * MIB))
    allocator.allocate(40 * MIB)
    assert (allocator.reserved, allocator.retries) == (40 * MIB, 1)
    with pytest.raises(DeviceMemoryError, match="41943040 of 52428800"):
        allocator.allocate(20 * MIB)


def test_fragments_do_not_fit_although_the_sum_does() -> None:
    # Two halves of segments are free, and no segment as a whole.
    sizes = [10 * MIB, 10 * MIB, 20 * MIB, 20 * MIB, 30 * MIB]
    events = [(4, True), (4, False), (0, True), (1, True), (2, True), (0, False), (2, False), (3, True)]
    found = replay(log_of(sizes, events), limit=42 * MIB)
    assert found.allocated <= 42 * MIB and not found.fits and found.event == 4
    assert replay(log_of(sizes, events), limit=62 * MIB).fits


def test_expandable_segments_grow_where_others_fragment() -> None:
    sizes = [30 * MIB, 40 * MIB, 50 * MIB, 60 * MIB]
    events = [(i // 2, i % 2 == 0) for i in range(8)]
    assert replay(log_of(sizes, events)).reserved == sum(sizes)
    assert replay(log_of(sizes, events), expandable=True).reserved == 60 * MIB


def test_persistent_memory_is_allocated_first() -> None:
    log = log_of([MIB], [(0, True)])
    found = replay(log, persistent=[32 * MIB, 32 * MIB])
    assert found == Replay(65 * MIB, 66 * MIB, True, None, 0)
    assert found.fragmentation == MIB
    assert not replay(log, limit=40 * MIB, persistent=[32 * MIB, 32 * MIB]).fits


@st.composite
def logs(draw: st.DrawFn) -> AllocationLog:
    """Allocations of all sizes, released in any order, all in the end."""
    sizes = draw(st.lists(st.one_of(st.integers(0, 4 * MIB), st.integers(MIB, 50 * MIB)), min_size=1, max_size=40))
    events: list[tuple[int, bool]] = []
    live: list[int] = []
    for index in range(len(sizes)):
        events.append((index, True))
        live.append(index)
        while live and draw(st.booleans()):
            events.append((live.pop(draw(st.integers(0, len(live) - 1))), False))
    events += [(index, False) for index in draw(st.permutations(live))]
    return log_of(sizes, events)


@settings(max_examples=60, deadline=None)
@given(logs(), st.booleans())
def test_reserved_memory_is_at_least_what_is_allocated(log: AllocationLog, expandable: bool) -> None:
    found = replay(log, expandable=expandable)
    assert found.reserved >= found.allocated >= log.peak()[0]
    assert found.fits and found.event is None and found.retries == 0


@settings(max_examples=60, deadline=None)
@given(logs(), st.booleans())
def test_all_memory_comes_back(log: AllocationLog, expandable: bool) -> None:
    allocator = CachingAllocator(expandable=expandable)
    blocks: dict[int, int] = {}
    taken: dict[int, int] = {}
    for index, begins in log.events:
        if not log.allocations[index].nbytes:
            continue
        if begins:
            before = allocator.allocated
            blocks[index] = allocator.allocate(log.allocations[index].nbytes)
            taken[blocks[index]] = allocator.allocated - before
            ordered = sorted(taken.items())
            # No two blocks overlap.
            assert all(a + size <= b for (a, size), (b, _) in itertools.pairwise(ordered))
        else:
            allocator.release(blocks[index])
            del taken[blocks.pop(index)]
        assert allocator.allocated == sum(taken.values()) <= allocator.reserved
    reserved = allocator.reserved
    assert allocator.allocated == 0
    assert allocator.empty_cache() == reserved
    assert allocator.reserved == 0


@settings(max_examples=40, deadline=None)
@given(logs(), st.booleans())
def test_a_run_fits_into_what_it_reserves_and_not_into_less_than_it_allocates(
    log: AllocationLog, expandable: bool
) -> None:
    found = replay(log, expandable=expandable)
    limited = replay(log, limit=found.reserved, expandable=expandable)
    assert limited == found
    if found.allocated:
        assert not replay(log, limit=log.peak()[0] - 1, expandable=expandable).fits


@settings(max_examples=40, deadline=None)
@given(logs(), st.integers(0, 8 * MIB))
def test_more_persistent_memory_never_needs_less(log: AllocationLog, nbytes: int) -> None:
    found = replay(log, persistent=[nbytes + 1])
    # Its segment may have room for others, so that only the allocated bytes grow for certain.
    assert found.allocated >= replay(log).allocated
    assert found.reserved >= max(replay(log).reserved, nbytes)
