from __future__ import annotations

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
