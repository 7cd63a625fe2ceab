"""Collectives of short tensors along the axes of a grid of ranks."""

from __future__ import annotations

import math
from collections.abc import Generator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as torch_dist
from hypothesis import given
from hypothesis import strategies as st

from composer import dist
from composer.dist import grid_collectives
from composer.dist.grid_collectives import (
    all_gather_rows,
    axis_ranks,
    gather_rows,
    grid_of,
    num_messages,
    start_all_reduce,
)
from tests.ranks import Ranks

SIZES = st.integers(1, 3000)


@given(SIZES)
def test_the_grid_has_all_ranks(size) -> None:
    axes = grid_of(size)
    assert math.prod(axes) == size
    if size > 32:
        assert all(axis <= 8 or all(axis % divisor for divisor in range(2, axis)) for axis in axes)
    assert num_messages(size) <= 2 * (size - 1)


@pytest.mark.parametrize("size", [48, 60, 64, 97, 512, 1000])
def test_each_axis_divides_the_ranks_into_groups_and_their_sums_are_the_total(size) -> None:
    values = torch.arange(size, dtype=torch.float64) ** 2
    total = values.sum()
    groups = [axis_ranks(rank, size) for rank in range(size)]
    for axis in range(len(grid_of(size))):
        for rank in range(size):
            members = groups[rank][axis]
            assert rank in members
            assert all(groups[other][axis] == members for other in members), "all members agree on the group"
        values = torch.stack([values[groups[rank][axis]].sum() for rank in range(size)])
    assert bool((values == total).all())


@pytest.mark.parametrize("size", [1024, 16_384])
def test_messages_grow_with_the_logarithm(size) -> None:
    assert num_messages(size) <= 5 * math.log2(size)
    assert max(map(len, axis_ranks(size - 1, size))) <= 8, "connections of a rank"


@contextmanager
def grid(length: int) -> Generator[None]:
    """As if the ranks of a test were many: a grid of axes of at most this length."""
    before = grid_collectives._MAX_RING, grid_collectives._MAX_AXIS, grid_collectives._axes
    grid_collectives._MAX_RING, grid_collectives._MAX_AXIS, grid_collectives._axes = 1, length, None
    try:
        yield
    finally:
        grid_collectives._MAX_RING, grid_collectives._MAX_AXIS, grid_collectives._axes = before


def sums_in_a_grid(length: int) -> tuple[list[float], list[float], int]:
    with grid(length):
        rank = dist.get_global_rank()
        first, second = torch.tensor([1.0, float(rank)]), torch.tensor([0.5])
        works = [start_all_reduce(first), start_all_reduce(second)]
        for work in reversed(works):  # in any order
            work.wait()
        return first.tolist(), second.tolist(), len(grid_collectives._groups())


@pytest.mark.parametrize(("length", "axes"), [(2, 2), (4, 1)])
def test_four_ranks_sum_along_axes(four_ranks: Ranks, length: int, axes: int) -> None:
    assert four_ranks.run(sums_in_a_grid, length) == [([4.0, 6.0], [2.0], axes)] * 4


def many_sums_in_a_grid(length: int) -> list[float]:
    with grid(length):
        found: list[float] = []
        for _ in range(100):
            vectors = [torch.ones(size) for size in (3, 1, 2)]
            works = [start_all_reduce(each) for each in vectors]
            found.append(float(all_gather_rows(torch.ones(1)).sum()))
            for work in works:
                work.wait()
            found += [float(each.sum()) for each in vectors]
        return found


def test_several_sums_at_once(four_ranks: Ranks) -> None:
    assert four_ranks.run(many_sums_in_a_grid, 2) == [[4.0, 12.0, 4.0, 8.0] * 100] * 4


@pytest.fixture
def reductions(monkeypatch) -> Any:
    """Two reductions along two axes of pretended groups, what was started, and the futures of these."""
    started: list[tuple[str, str]] = []
    ends: list[Any] = []

    def all_reduce(tensor: str, operation: Any, group: str, async_op: bool) -> Any:
        started.append((group, tensor))
        ends.append(end := torch.futures.Future())
        return SimpleNamespace(get_future=lambda: end)

    monkeypatch.setattr(torch_dist, "all_reduce", all_reduce)
    monkeypatch.setattr(grid_collectives, "_last", None)
    groups = ["rows", "columns"]
    both = [grid_collectives._AxisReductions(name, "SUM", groups) for name in ("first", "second")]
    assert started == [("rows", "first"), ("rows", "second")]
    return both, started, ends


def test_reductions_start_in_the_same_order_along_each_axis(reductions: Any) -> None:
    """The threads of gloo may end them in another order on each rank; a group needs the same on all."""
    (first, second), started, ends = reductions
    ends[1].set_result(None)
    assert len(started) == 2
    ends[0].set_result(None)
    assert started[2:] == [("columns", "first"), ("columns", "second")]
    ends[3].set_result(None)
    second.wait()
    ends[2].set_result(None)
    first.wait()


def test_reductions_go_on_after_one_that_failed(reductions: Any) -> None:
    (first, second), started, ends = reductions
    ends[1].set_result(None)
    ends[0].set_exception(RuntimeError("connection closed"))
    assert started[2:] == [("columns", "second")]
    ends[2].set_result(None)
    second.wait()
    with pytest.raises(RuntimeError, match="connection closed"):
        first.wait()


def collectives_in_a_grid(length: int) -> list[Any]:
    rank = dist.get_global_rank()
    with grid(length):
        largest = torch.tensor([rank, -rank])
        dist.all_reduce(largest, "MAX")
        total = torch.tensor(float(rank))
        dist.all_reduce(total)
        rows = gather_rows(torch.tensor([rank, 7]))
        return [
            largest.tolist(),
            total.item(),
            all_gather_rows(torch.tensor([rank, 7])).tolist(),
            None if rows is None else rows.tolist(),
            [one.tolist() for one in dist.all_gather(torch.tensor([[rank]]))],
            dist.all_gather_object({"rank": rank, "text": "x" * rank}),
            dist.gather_object("y" * rank),
            dist.largest(rank),
        ]


@pytest.mark.parametrize("length", [2, 4])
def test_collectives_of_four_ranks_in_a_grid(four_ranks: Ranks, length: int) -> None:
    rows = [[rank, 7] for rank in range(4)]
    for rank, found in enumerate(four_ranks.run(collectives_in_a_grid, length)):
        assert found == [
            [3, 0],
            6.0,
            rows,
            rows if rank == 0 else None,
            [[[other]] for other in range(4)],
            [{"rank": other, "text": "x" * other} for other in range(4)],
            ["y" * other for other in range(4)] if rank == 0 else None,
            3,
        ]


def fails_on_the_second_axis() -> str:
    work = grid_collectives._AxisReductions(torch.ones(1), torch_dist.ReduceOp.SUM, [None, "no group"])
    with pytest.raises(Exception) as raised:
        work.wait()
    return type(raised.value).__name__


def test_an_error_of_a_later_axis_is_raised_to_the_caller(two_ranks: Ranks) -> None:
    first, second = two_ranks.run(fails_on_the_second_axis)
    assert first == second
