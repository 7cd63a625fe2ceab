from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest

from composer.history import History, LoggedArray, Series


def test_metrics_by_name() -> None:
    history = History("night", {"metrics/eval/Accuracy": Series("a", np.array([4, 8]), np.array([0.5, 0.7]))})
    assert history["eval/Accuracy"] is history["metrics/eval/Accuracy"]
    assert "eval/Accuracy" in history
    assert "Accuracy" not in history
    with pytest.raises(KeyError, match=r"no metric 'eval/Acuracy'. Did you mean 'metrics/eval/Accuracy'"):
        history["eval/Acuracy"]
    with pytest.raises(KeyError, match=r"no metric 'x'. Logged: nothing."):
        History("empty")["x"]
    assert (history.first_step, history.last_step, history.seconds) == (4, 8, None)


def test_a_history_is_a_mapping_of_names_to_series() -> None:
    one, two = (Series(name, np.array([0]), np.array([0.5])) for name in ("loss", "metrics/eval/Accuracy"))
    history = History("night", {one.name: one, two.name: two})
    assert isinstance(history, Mapping)
    assert list(history) == list(history.keys()) == ["loss", "metrics/eval/Accuracy"]
    assert dict(history) == history.series
    assert list(history.values()) == [one, two]
    assert len(history) == 2
    assert history.get("eval/Accuracy") is two
    assert history.get("eval/F1") is None
    with pytest.raises(TypeError, match=r"history\[0\].*by name.*list\(history\) has the names"):
        history[0]  # pyright: ignore[reportArgumentType]
    assert 0 not in history
    # As before it was one.
    assert history == history
    assert history != History("night", {one.name: one, two.name: two})
    assert hash(history) == hash(history)
    assert History("empty")


def test_what_is_no_number_is_elsewhere() -> None:
    matrix = {"metrics/eval/CM": LoggedArray(np.eye(2), 8)}
    history = History("night", arrays=matrix, texts={"word": "once"})
    for name in ("eval/CM", "metrics/eval/CM"):
        with pytest.raises(KeyError, match=r"is an array, not a number.*history\.arrays\['metrics/eval/CM'\]"):
            history[name]
    with pytest.raises(KeyError, match=r"is text, not a number.*history\.texts\['word'\]"):
        history["word"]


def test_a_table_of_pandas() -> None:
    pytest.importorskip("pandas")
    time = np.array([0.0, 1.0])
    loss = Series("loss", np.array([0, 1]), np.array([0.9, 0.5]), seconds=time)
    twice = Series("epoch", np.array([1, 1, 2]), np.array([1.0, 2.0, 3.0]), seconds=np.array([1.0, 1.0, 2.0]))
    table = History("night", {"loss": loss, "epoch": twice}).to_dataframe()
    assert list(table.columns) == ["step", "seconds", "loss", "metrics/epoch"]
    assert table["step"].tolist() == [0, 1, 1, 2]
    assert table["seconds"].tolist() == [0, 1, 1, 2]
    np.testing.assert_equal(table["loss"].to_numpy(), [0.9, 0.5, np.nan, np.nan])
    np.testing.assert_equal(table["metrics/epoch"].to_numpy(), [np.nan, 1, 2, 3])
    assert list(History("empty").to_dataframe().columns) == ["step"]
    named = {name: Series(name, np.array([0, 0]), np.array([1.0, 2.0])) for name in ("number", "step", "metrics/step")}
    table = History("odd", named).to_dataframe()
    assert list(table.columns) == ["step", "number", "metrics/step", "metrics/metrics/step"]
    assert table["number"].tolist() == [1.0, 2.0]


def test_the_epochs_of_a_table_of_pandas_do_not_go_back() -> None:
    """A metric that is logged twice in a step shares rows only with what was logged in the same epoch."""
    pytest.importorskip("pandas")
    score = Series("score", np.array([3]), np.array([0.5]), epoch=np.array([1.0]))
    rate = Series("rate", np.array([2, 3, 3, 4]), np.arange(4.0), epoch=np.array([0.0, 0.0, 0.0, 1.0]))
    table = History("night", {"score": score, "rate": rate}).to_dataframe()
    assert table["step"].tolist() == [2, 3, 3, 3, 4]
    assert table["epoch"].tolist() == [0, 0, 0, 1, 1]
    np.testing.assert_equal(table["rate"].to_numpy(), [0, 1, 2, np.nan, 3])
    np.testing.assert_equal(table["score"].to_numpy(), [np.nan, np.nan, np.nan, 0.5, np.nan])
