"""Which checkpoints are kept."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from composer.checkpoint.retention import Retention, SavedCheckpoint, retention_of

scores = st.none() | st.floats(-5, 5) | st.just(math.nan)


def saved(values: list[float | None], first: int = 0) -> list[SavedCheckpoint]:
    return [SavedCheckpoint(f"{i}.pt", i * 10, i, value) for i, value in enumerate(values, first)]


def kept(retention: Retention, values: list[float | None]) -> list[int]:
    everything = saved(values)
    gone = retention.to_delete(everything)
    return [one.number for one in everything if one not in gone]


def test_manual_example() -> None:
    values = [3.0, 1.0, 2.0, 1.0, 5.0, 4.0]
    assert kept(Retention(), values) == [0, 1, 2, 3, 4, 5]
    assert kept(Retention(newest=2), values) == [4, 5]
    assert kept(Retention(newest=1, best=1), values) == [1, 5]  # of equal scores the earlier
    assert kept(Retention(newest=1, best=2, mode="max"), values) == [4, 5]
    assert kept(Retention(newest=1, best=3, mode="max"), values) == [0, 4, 5]
    assert kept(Retention(newest=1, every=2), values) == [0, 2, 4, 5]
    assert kept(Retention(newest=0, best=1), values) == [1, 5]


def test_nan_score_is_never_best() -> None:
    assert kept(Retention(newest=1, best=1), [math.nan, 2.0, None, 3.0]) == [1, 3]
    assert kept(Retention(newest=1, best=1, mode="max"), [math.nan, 2.0, None, 1.0]) == [1, 3]
    assert kept(Retention(newest=1, best=2), [math.nan, None, 1.0]) == [2]


@given(
    st.lists(scores, min_size=1, max_size=12),
    st.integers(-1, 4),
    st.integers(0, 3),
    st.integers(0, 3),
    st.sampled_from(["min", "max"]),
)
def test_BestTopK(values, newest, best, every, mode) -> None:
    """Removing after each save keeps the newest, the best of all that there were, and what is kept for ever."""
    retention = Retention(newest, best, every, mode)
    there: list[SavedCheckpoint] = []
    for one in saved(values):
        there.append(one)
        gone = retention.to_delete(there)
        assert one not in gone
        there = [other for other in there if other not in gone]
    numbers = [one.number for one in there]
    assert numbers == kept(retention, values)
    if newest < 0:
        assert len(there) == len(values)
        return
    assert set(range(len(values) - newest, len(values))) & set(range(len(values))) <= set(numbers)
    ranked = [(v if mode == "min" else -v, i) for i, v in enumerate(values) if v is not None and not math.isnan(v)]
    assert {number for _, number in sorted(ranked)[:best]} <= set(numbers)
    assert not every or set(range(0, len(values), every)) <= set(numbers)
    assert len(numbers) <= max(newest, 1) + best + (math.ceil(len(values) / every) if every else 0)


def test_retention_of_a_single_checkpoint() -> None:
    one = SavedCheckpoint("a.pt", 3, 1, 0.5)
    assert SavedCheckpoint.from_state(one.state_dict()) == one
    assert (
        SavedCheckpoint.from_state({"path": "a.pt", "batch": 3, "number": 1, "score": 0.5}) == one
    )  # earlier versions


@pytest.mark.parametrize(
    "state",
    [
        None,
        [],
        {},
        {"name": 3, "batch": 3, "number": 1},
        {"name": "a.pt", "batch": "3", "number": 1},
        {"name": "a.pt", "batch": 3, "number": None},
        {"name": "a.pt", "batch": 3, "number": 1, "score": "0.5"},
    ],
)
def test_entry_not_written_by_a_saver(state) -> None:
    assert SavedCheckpoint.from_state(state) is None


def test_best_or_every_nth_is_sufficient() -> None:
    assert retention_of(-1, 2, 0, "max", "loss") == Retention(newest=1, best=2, mode="max")
    assert retention_of(-1, 0, 3, "min", None) == Retention(newest=1, every=3)
    assert retention_of(-1, 0, 0, "min", None).newest == -1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((-2, 0, 0, "min", None), "must be a number, or -1 for all; got -2"),
        ((0, 0, 0, "min", None), "would delete the checkpoint"),
        ((1, -1, 0, "min", "loss"), "keep_best must be 0 or greater, but got -1"),
        ((1, 1, 0, "min", None), "must be given together"),
        ((1, 1, 0, "lowest", "loss"), "mode must be one of 'min', 'max'"),
    ],
)
def test_conflicting_arguments(arguments, message) -> None:
    with pytest.raises(ValueError, match=message):
        retention_of(*arguments)
