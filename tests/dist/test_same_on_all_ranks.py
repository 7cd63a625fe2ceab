"""Values that must be equal on all ranks."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from composer import dist
from composer.dist.ranks import describe_ranks
from composer.dist.same_on_all_ranks import disagreements
from tests.ranks import Ranks


def each_checks() -> list[str]:
    """The error on each rank for values that are equal, that differ, and that cannot be hashed."""
    rank = dist.get_global_rank()
    told = []
    for value in ("adam", f"adam{rank}", [rank // 2], {"lr": 0.1}):
        try:
            dist.check_same("optimizer", value)
            told.append("")
        except ValueError as error:
            told.append(str(error))
    return told


def test_error_lists_each_ranks_value(two_ranks: Ranks) -> None:
    message = "optimizer must be the same on all ranks. rank 0: 'adam0'; rank 1: 'adam1'."
    assert two_ranks.run(each_checks) == [["", message, "", ""]] * 2


def test_single_rank_always_agrees() -> None:
    dist.check_same("optimizer", object())


def test_ranks_with_equal_values_are_grouped() -> None:
    everyone = [{"name": "adam"}, {"name": "sgd"}, {"name": "adam"}, {}]
    assert disagreements(everyone) == {"name": "ranks 0, 2: 'adam'; rank 1: 'sgd'; rank 3: None"}
    assert disagreements(everyone[:2], [4, 7]) == {"name": "rank 4: 'adam'; rank 7: 'sgd'"}


@given(st.lists(st.integers(0, 3), min_size=1, max_size=12))
def test_differences_are_found_iff_values_differ(values) -> None:
    found = disagreements([{"x": value} for value in values])
    assert bool(found) == (len(set(values)) > 1)
    if found:
        assert found["x"].count("rank") == len(set(values))


@given(st.sets(st.integers(0, 40), min_size=1))
def test_rank_ranges_can_be_parsed(ranks) -> None:
    word, _, text = describe_ranks(ranks).partition(" ")
    assert word == ("rank" if len(ranks) == 1 else "ranks")
    found: set[int] = set()
    for part in text.split(", "):
        first, _, last = part.partition("-")
        found |= set(range(int(first), int(last or first) + 1))
    assert found == ranks


@pytest.mark.parametrize(
    ("arguments", "kind", "message"),
    [
        (
            {"dataset": iter([1])},
            TypeError,
            "dataset must have a length to be sharded across ranks, but list_iterator has none",
        ),
        ({"dataset": [1], "num_replicas": 0}, ValueError, "num_replicas must be greater than 0"),
        ({"dataset": [1], "num_replicas": 2, "rank": 2}, ValueError, "rank must be from 0 to 1, .* but got 2"),
    ],
)
def test_values_that_cannot_be_sharded(arguments, kind, message) -> None:
    with pytest.raises(kind, match=message):
        dist.get_sampler(**arguments)
