"""``trainer.history``: what the trainer logged, also before it was resumed, and nothing where nothing is logged."""

from __future__ import annotations

import gc
import weakref
from pathlib import Path
from typing import Any

import pytest
import torch

from composer import Callback
from composer.callbacks import CheckpointSaver
from composer.history import History
from composer.loggers import CSVLogger, InMemoryLogger, JSONLinesLogger
from tests.common import Regression, regression_data, trainer_of

LOSS = "loss/train/total"
METRIC = "metrics/eval/MeanSquaredError"


def of(**arguments: Any) -> Any:
    arguments.setdefault("max_duration", "2ep")
    return trainer_of(Regression(metrics=True), eval_dataloader=regression_data(1), **arguments)


def kinds(history: History) -> list[str]:
    return [event.kind for event in history.events]


def test_it_is_what_a_file_has(tmp_path: Path) -> None:
    with of(loggers=JSONLinesLogger(f"{tmp_path}/log.jsonl"), run_name="night") as trainer:
        trainer.fit()
        trainer.logger.log_table(["a"], [[1]], name="T")
        live = trainer.history
    read = History.read(tmp_path)
    assert list(live.series) == list(read.series)
    for name, series in live.series.items():
        assert series.step.tolist() == read[name].step.tolist()
        assert series.values.tolist() == read[name].values.tolist()
        for unit in ("epoch", "sample", "token", "seconds"):
            assert series.over(unit).tolist() == read[name].over(unit).tolist()
    assert live.name == "night"
    assert live.hyperparameters == read.hyperparameters
    assert live.tables == read.tables
    assert live.events == read.events
    assert kinds(live) == ["start", "evaluation", "evaluation", "end"]
    assert 0 < live.events[-1].details["goodput"] < 1
    assert live.environment["versions"]["torch"] == read.environment["versions"]["torch"] == torch.__version__
    assert live.model == read.model
    assert live.model["notes"][0].startswith("Regression: 5 parameters")


def test_several_destinations_and_intervals_count_once() -> None:
    often, rarely = InMemoryLogger(), InMemoryLogger()
    often.flush_interval, rarely.flush_interval = 1, 3
    with of(loggers=[often, rarely]) as trainer:
        trainer.fit()
        history = trainer.history
    assert history[LOSS].step.tolist() == list(range(8))
    assert history[LOSS].values.tolist() == often.get_timeseries(LOSS)[LOSS].tolist()
    assert history[METRIC].step.tolist() == [4, 8]


def test_nothing_is_queued_for_its_sake() -> None:
    with of() as trainer:
        trainer.fit()
        assert trainer.history.series == {}
        assert trainer.logger._queues == []
        assert kinds(trainer.history) == ["start", "evaluation", "evaluation", "end"]


def test_it_keeps_neither_the_model_nor_the_trainer_alive() -> None:
    with of(loggers=InMemoryLogger()) as trainer:
        trainer.fit()
        history = trainer.history
        model = weakref.ref(trainer.state.model)
    del trainer
    gc.collect()
    assert model() is None
    assert len(history[LOSS]) == 8


class Stop(Callback):
    def batch_end(self, state: Any, logger: Any) -> None:
        if state.timestamp.batch == 6:
            raise RuntimeError("no more\nspace")


@pytest.mark.parametrize("log", [JSONLinesLogger, CSVLogger, InMemoryLogger])
def test_a_resumed_run_has_what_its_file_has(tmp_path: Path, log: type) -> None:
    def make(*callbacks: Callback) -> Any:
        logger = log() if log is InMemoryLogger else log(f"{tmp_path}/log{'.csv' if log is CSVLogger else '.jsonl'}")
        saver = CheckpointSaver(str(tmp_path / "saved"), monitor="eval/MeanSquaredError", keep_best=1)
        return of(loggers=logger, callbacks=[saver, *callbacks], run_name="night", autoresume=True, save_folder=None)

    with make(Stop()) as trainer, pytest.raises(RuntimeError, match="no more"):
        trainer.fit()
    assert kinds(trainer.history) == ["start", "evaluation", "checkpoint", "error"]
    assert trainer.history.events[-1].text == "RuntimeError: no more"
    with make() as trainer:
        before = trainer.history
        trainer.fit()
        history = trainer.history
    is_read = log is not InMemoryLogger
    assert list(range(4)) == before[LOSS].step.tolist()[:4] if is_read else before.series == {}
    assert history[LOSS].step.tolist() == (list(range(8)) if is_read else list(range(4, 8)))
    assert history[METRIC].step.tolist() == ([4, 8] if is_read else [8])
    found = [event for event in history.events if event.kind == "checkpoint"]
    assert found[-1].step == 8
    details = found[-1].details
    assert details["path"].endswith("ep2-ba8-rank0.pt")
    assert (details["monitor"], details["mode"]) == ("eval/MeanSquaredError", "min")
    assert details["score"] == pytest.approx(history[METRIC].last)
    assert "resumption" in kinds(history)
    if log is JSONLinesLogger:
        first = ["start", "evaluation", "checkpoint", "error"]
        expected = [*first, "resumption", "start", "evaluation", "checkpoint", "end"]
        assert kinds(history) == kinds(History.read(tmp_path / "log.jsonl")) == expected
