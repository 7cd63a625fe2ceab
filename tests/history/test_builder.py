from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from composer.history import HistoryBuilder


def test_what_values_may_be() -> None:
    builder = HistoryBuilder("night")
    values = {
        "int": 3,
        "bool": True,
        "special": "-Infinity",
        "tensor": torch.tensor([[0.5]]),
        "scalar": np.float32(2.5),
        "matrix": [[1, "NaN"], [2, 3]],
        "vector": torch.tensor([1.0, 2.0]),
        "word": "0.5",
        "ragged": [[1], [2, 3]],
        "one": [0.5],
        "one of NaN": [["NaN"]],
        "one word": ["0.5"],
        "mapping": {"a": 1},
        "nothing": None,
        "large": 10**400,
    }
    builder.add(7, values)
    history = builder.history()
    assert {name: one.last for name, one in history.series.items()} == {
        "int": 3,
        "bool": 1,
        "special": -np.inf,
        "tensor": 0.5,
        "scalar": 2.5,
        "one": 0.5,
        "one of NaN": pytest.approx(np.nan, nan_ok=True),
    }
    np.testing.assert_equal(history.arrays["matrix"].values, [[1, np.nan], [2, 3]])
    assert history.arrays["vector"].step == 7
    assert set(history.texts) == {"word", "ragged", "mapping", "large"}


def test_a_history_does_not_change_with_later_records() -> None:
    builder = HistoryBuilder("night")
    builder.add(0, {"loss": 1.0})
    before = builder.history()
    builder.add(1, {"loss": 0.5, "accuracy": 0.1})
    assert before["loss"].values.tolist() == [1]
    assert list(builder.history().series) == ["loss", "accuracy"]


def test_an_evaluation_before_the_checkpoint_is_not_repeated() -> None:
    builder = HistoryBuilder("night")
    for step in range(3):
        builder.add(step, {"loss": 1.0 + step}, seconds=step)
    builder.add(2, {"accuracy": 0.5}, seconds=2)  # after two batches, before the checkpoint
    builder.add(4, {"accuracy": 0.6}, seconds=4)
    builder.add(2, {"loss": 2.5}, seconds=2)
    history = builder.history()
    assert history["loss"].values.tolist() == [1, 2, 2.5]
    assert history.replaced["loss"].values.tolist() == [3]
    assert history["accuracy"].step.tolist() == [2]
    assert history.replaced["accuracy"].step.tolist() == [4]


@given(st.lists(st.tuples(st.integers(1, 6), st.integers(0, 5)), min_size=1, max_size=6))
def test_any_number_of_resumptions(attempts: list[tuple[int, int]]) -> None:
    """Each attempt trains some steps and is then resumed some steps back: the history is that of the last of each."""
    builder, expected, all_values, step, value = HistoryBuilder("night"), dict[int, float](), [], 0, 0.0
    for steps, back in attempts:
        for _ in range(steps):
            builder.add(step, {"loss": value}, seconds=step)
            all_values.append(value)
            expected[step] = value
            step, value = step + 1, value + 1
        step = max(0, step - back)
        expected = {known: kept for known, kept in expected.items() if known < step or not back}
    if attempts[-1][1]:  # the last resumption trained nothing
        builder.add(step, {"loss": value}, seconds=step)
        all_values.append(value)
        expected[step] = value
    history = builder.history()
    assert dict(zip(history["loss"].step.tolist(), history["loss"].values.tolist(), strict=True)) == expected
    replaced = history.replaced["loss"].values.tolist() if history.replaced else []
    assert sorted([*history["loss"].values.tolist(), *replaced]) == all_values


def test_a_record_that_does_not_fit_leaves_nothing() -> None:
    builder = HistoryBuilder("night")
    builder.add(0, {"loss": 1.0}, seconds=0.0)
    for step, seconds in ((2**70, 1.0), (1, 10**400), (1, "soon")):
        with pytest.raises((OverflowError, TypeError)):
            builder.add(step, {"loss": 2.0}, seconds=seconds)  # type: ignore[arg-type]
    builder.add(1, {"loss": 3.0}, seconds=1.0)
    loss = builder.history()["loss"]
    assert (loss.step.tolist(), loss.values.tolist(), loss.over("seconds").tolist()) == ([0, 1], [1, 3], [0, 1])


@given(
    st.lists(
        st.tuples(st.integers(0, 5), st.sampled_from([0.0, 1.0, 2.0, 3.0, np.nan]), st.sampled_from(["", "a", "ab"])),
        max_size=20,
    )
)
def test_what_resumptions_replace(records: list[tuple[int, float, str]]) -> None:
    builder = HistoryBuilder("night")
    clock, resumptions = -np.inf, []
    for row, (step, seconds, names) in enumerate(records):
        builder.add(step, {name: float(row) for name in names}, seconds=seconds)
        if seconds < clock:
            resumptions.append((row, seconds))
        clock = clock if np.isnan(seconds) else seconds
    history = builder.history()

    def is_replaced(row: int, rows: list[int]) -> bool:
        step, time, _ = records[row]
        return any(
            time > seconds or (time == seconds and step in {records[other][0] for other in rows if other >= start})
            for start, seconds in resumptions
            if row < start
        )

    for name in "ab":
        rows = [row for row, record in enumerate(records) if name in record[2]]
        kept = history.series[name].values if rows else []
        lost = history.replaced[name].values if name in history.replaced else []
        assert list(kept) == [row for row in rows if not is_replaced(row, rows)]
        assert list(lost) == [row for row in rows if is_replaced(row, rows)]


def test_two_writers_of_one_log_are_read_soon() -> None:
    builder = HistoryBuilder("night")
    for step in range(20_000):
        for seconds in (step, step / 2):
            builder.add(step, {"loss": 1.0}, seconds=seconds)
    # A pass for each of the resumptions would take minutes.
    assert len(builder.history()["loss"]) == 20_001


def test_the_latest_times_outlast_all_values() -> None:
    builder = HistoryBuilder("night")
    for step in range(100):
        builder.add(step, {"loss": float(step)}, epoch=0, seconds=0.1 * step)
    builder.add(100, {"time/epoch": 1}, epoch=1, seconds=10.0)
    assert builder.history().latest == {"step": 100, "epoch": 1, "seconds": 10.0}
    builder.thin(10)
    found = builder.history()
    assert found.latest == {"step": 100, "epoch": 1, "seconds": 10.0}
    builder.add(50, {"loss": 0.5}, epoch=0, seconds=5.0)  # resumed
    assert builder.history().latest == {"step": 50, "epoch": 0, "seconds": 5.0}
    assert found.followed_by(HistoryBuilder("night").history()).latest == found.latest
    assert found.until(5.0).latest == {}
