from __future__ import annotations

import gc
import json
import weakref

import numpy as np
import pytest
import torch

from composer.core import Logger, State
from composer.core.timestamp import Timestamp
from composer.loggers import InMemoryLogger
from tests.loggers.loop import Loop

CASE = {"make": InMemoryLogger}


def test_every_value_has_the_time_of_logging() -> None:
    memory = InMemoryLogger()
    Loop([memory], "2ep", eval_length=1).init().fit().close()
    series = memory.data["loss/train/total"]
    assert [value for _, value in series] == pytest.approx([1 / (k + 1) for k in range(8)])
    assert {type(value) for _, value in series} == {torch.Tensor}  # as they were logged
    assert [t.batch.value for t, _ in series] == list(range(8))
    assert [t.epoch.value for t, _ in series] == [0] * 4 + [1] * 4
    assert [t.batch_in_epoch.value for t, _ in series] == [0, 1, 2, 3] * 2
    assert [t.batch.value for t, _ in memory.data["metrics/eval/Accuracy"]] == [4, 8]
    assert memory.most_recent_values == {
        "loss/train/total": pytest.approx(1 / 8),
        "time/batch": 7,
        "metrics/eval/Accuracy": 0.5,
    }
    assert memory.most_recent_timestamps["loss/train/total"].batch == "7ba"


def test_timeseries() -> None:
    memory = InMemoryLogger()
    Loop([memory], "10ba", length=10, eval_length=0).init().fit(10)
    series = memory.get_timeseries("loss/train/total")
    np.testing.assert_array_equal(series["batch"], np.arange(10))
    np.testing.assert_array_equal(series["sample"], 8 * np.arange(10))
    np.testing.assert_allclose(series["loss/train/total"], 1 / (1 + np.arange(10)))
    assert set(series) == {*Timestamp().state_dict(), "loss/train/total"}
    assert {column.shape for column in series.values()} == {(10,)}


def test_wall_clock_is_in_seconds() -> None:
    memory = InMemoryLogger()
    memory.__receive__({"x": 1}, 0, Timestamp(total_wct=1.5))
    assert memory.get_timeseries("x")["total_wct"] == [1.5]


def test_unknown_metric() -> None:
    memory = InMemoryLogger()
    with pytest.raises(ValueError, match=r"got 'x'\. None was logged\."):
        memory.get_timeseries("x")
    memory.log_metrics({"loss/train/total": 1.0})
    with pytest.raises(ValueError, match=r"Did you mean 'loss/train/total'\?"):
        memory.get_timeseries("loss/train/totl")
    with pytest.raises(ValueError, match=r"Logged so far: 'loss/train/total'\."):
        memory.get_timeseries("xyz")


def test_nothing_is_transferred_until_data_is_read() -> None:
    memory = InMemoryLogger()
    loop = Loop([memory], "1000ba", length=1000).init()
    loop.logger.deferred = True
    for _ in range(99):
        loop.batch()
    assert memory._data == {}
    assert len(memory.data["loss/train/total"]) == 99
    loop.batch()  # the 100th is due
    assert len(memory._data["loss/train/total"]) == 100


def test_without_init() -> None:
    memory = InMemoryLogger()
    state = State(torch.nn.Linear(1, 1))
    logger = Logger(state, memory)
    logger.log_metrics({"x": torch.tensor(2.0)})
    state.timestamp = state.timestamp.to_next_batch()
    logger.log_metrics({"x": 3.0})
    assert [(t.batch.value, value) for t, value in memory.data["x"]] == [(0, 2.0), (1, 3.0)]


def test_a_given_step_counts() -> None:
    memory = InMemoryLogger()
    state = State(torch.nn.Linear(1, 1))
    Logger(state, memory).log_metrics({"x": 1.0}, step=70)
    memory.log_metrics({"x": 2.0}, step=71)
    np.testing.assert_array_equal(memory.get_timeseries("x")["batch"], [70, 71])
    assert state.timestamp.batch == "0ba"


def test_non_numeric_values_are_kept() -> None:
    memory = InMemoryLogger()
    matrix = torch.eye(2)
    memory.log_metrics({"matrix": matrix, "word": "a"})
    assert memory.most_recent_values["word"] == "a"
    assert memory.most_recent_values["matrix"] is matrix
    assert memory.get_timeseries("word")["word"].tolist() == ["a"]


def test_hyperparameters_and_tables() -> None:
    memory = InMemoryLogger()
    memory.log_hyperparameters({"lr": 0.1, "seed": 1})
    memory.log_hyperparameters({"lr": 0.2})
    assert memory.hyperparameters == {"lr": 0.2, "seed": 1}
    memory.log_table(["a", "b"], [[1, "x"], [torch.tensor(2), torch.float32]], name="T")
    assert json.loads(memory.tables["T"]) == {"columns": ["a", "b"], "data": [[1, "x"], [2, "torch.float32"]]}
    assert memory.tables["T"].startswith('{"columns":["a","b"],"data":[[1,"x"]')


def test_after_close_it_keeps_the_values_but_not_the_run() -> None:
    memory = InMemoryLogger()
    loop = Loop([memory], "4ba").init().fit()
    model = weakref.ref(loop.state.model)
    loop.logger.deferred = True
    loop.logger.log_metrics({"late": 1})
    loop.close()
    del loop
    gc.collect()
    assert model() is None
    assert memory.most_recent_values["late"] == 1
    assert len(memory.data["loss/train/total"]) == 4
