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
