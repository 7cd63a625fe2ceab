"""LogAxis: one axis for all destinations; trackers that fail."""

from __future__ import annotations

import csv
import json
import re

import pytest
import torch

from composer import Callback
from composer.loggers import CSVLogger, FileLogger, InMemoryLogger, JSONLinesLogger, TensorboardLogger
from composer.warnings import ComposerWarning
from tests.common import At, Received, Regression, regression_data, trainer_of, weights


class Chatty(Callback):
    """Logs at many events: numbers, tables, images."""

    def __init__(self, extras: bool = True) -> None:
        self.extras = extras

    def log(self, state, logger, name: str) -> None:
        logger.log_metrics({name: torch.tensor(float(state.timestamp.batch.value))})
        if self.extras:
            logger.log_table(["a"], [[1]], name="table")
            logger.log_images(torch.zeros(1, 2, 2), name="images")

    def batch_start(self, state, logger):
        self.log(state, logger, "batch_start")

    def after_loss(self, state, logger):
        self.log(state, logger, "after_loss")

    def batch_end(self, state, logger):
        self.log(state, logger, "batch_end")

    def epoch_end(self, state, logger):
        self.log(state, logger, "epoch_end")

    def eval_end(self, state, logger):
        self.log(state, logger, "eval_end")

    def fit_end(self, state, logger):
        self.log(state, logger, "fit_end")


def train(*loggers, extras: bool = True, **more):
    torch.manual_seed(0)
    trainer = trainer_of(
        Regression(metrics=True),
        max_duration="2ep",
        loggers=list(loggers),
        callbacks=Chatty(extras),
        eval_dataloader=regression_data(1),
        **more,
    )
    trainer.fit()
    trainer.close()
    return trainer


def test_LogAxis_every_destination_gets_the_same_steps() -> None:
    """However often each one wants its values, all get all of them, at the same steps, in the same order."""
    slow, fast, never, memory = Received(3), Received(1), Received(1000), InMemoryLogger()
    train(slow, fast, never, memory)

    def without_train_metrics(log):  # these are computed only when somebody is due, for everybody
        return [(step, metrics) for step, metrics in log.metrics]

    assert without_train_metrics(slow) == without_train_metrics(fast) == without_train_metrics(never)
    assert slow.others == fast.others == never.others
    for name in ("batch_start", "loss/train/total", "metrics/eval/MeanSquaredError"):
        assert [t.batch.value for t, _ in memory.data[name]] == [step for step, _ in fast.series(name)]


def test_LogAxis_steps_of_each_event() -> None:
    log = Received(5)
    train(log)
    steps = {name: [step for step, _ in log.series(name)] for name in {n for _, m in log.metrics for n in m}}
    assert steps["loss/train/total"] == steps["time/batch"][:8] == list(range(8))
    assert steps["batch_start"] == steps["after_loss"] == list(range(8))
    assert steps["batch_end"] == list(range(1, 9))
    assert steps["epoch_end"] == steps["eval_end"] == steps["metrics/eval/MeanSquaredError"] == [4, 8]
    assert steps["fit_end"] == [8]
    assert all(value == step for name in ("batch_start", "batch_end", "fit_end") for step, value in log.series(name))


def test_LogAxis_tables_and_images_do_not_move_the_step() -> None:
    with_extras, without = Received(), Received()
    train(with_extras)
    train(without, extras=False)
    assert with_extras.metrics == without.metrics
    assert not without.others
    assert len(with_extras.others) == 2 * (3 * 8 + 2 + 2 + 1)
    assert {kind for kind, _ in with_extras.others} == {"table", "images"}
    assert sorted({step for _, step in with_extras.others}) == list(range(9))


def test_LogAxis_continues_in_a_further_fit_and_an_evaluation() -> None:
    log = Received()
    trainer = trainer_of(Regression(metrics=True), loggers=log, eval_dataloader=regression_data(1), eval_interval=0)
    trainer.fit()
    trainer.fit(duration="2ba")
    trainer.eval()
    assert [step for step, _ in log.series("loss/train/total")] == [0, 1, 2, 3, 4, 5]
    assert [step for step, _ in log.series("metrics/eval/MeanSquaredError")] == [6]


# ---------------------------------------------------------------------------------------------------- what is stored

Series = dict[str, list[int]]


def steps_in_lines(folder) -> Series:
    """The steps of each metric in a file of lines ``[metric][batch=3]: name: value``."""
    found: Series = {}
    for line in next(folder.iterdir()).read_text().splitlines():
        if match := re.match(r"\[metric\]\[batch=(\d+)\]: (\S+): ", line):
            found.setdefault(match[2], []).append(int(match[1]))
    return found


def steps_in_csv(folder) -> Series:
    rows = list(csv.DictReader(next(folder.iterdir()).read_text().splitlines()))
    names = set(rows[0]) - {"step", "epoch", "seconds"}
    return {name: [int(row["step"]) for row in rows if row[name]] for name in names}


def steps_in_json(folder) -> Series:
    found: Series = {}
    for line in map(json.loads, next(folder.iterdir()).read_text().splitlines()):
        if line["kind"] == "metrics":
            for name in line["values"]:
                found.setdefault(name, []).append(line["step"])
    return found


def steps_in_tensorboard(folder) -> Series:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    board = EventAccumulator(str(next(folder.iterdir())), size_guidance={"scalars": 0}).Reload()
    return {name: [event.step for event in board.Scalars(name)] for name in board.Tags()["scalars"]}


STORES = {
    "FileLogger": (lambda folder: FileLogger(f"{folder}/log.txt", flush_interval=3), steps_in_lines),
    "CSVLogger": (lambda folder: CSVLogger(f"{folder}/log.csv", flush_interval=3), steps_in_csv),
    "JSONLinesLogger": (lambda folder: JSONLinesLogger(f"{folder}/log.jsonl", flush_interval=3), steps_in_json),
    "TensorboardLogger": (lambda folder: TensorboardLogger(str(folder), flush_interval=3), steps_in_tensorboard),
}


@pytest.mark.parametrize(("make", "read"), STORES.values(), ids=STORES.keys())
def test_LogAxis_what_a_destination_stores_has_the_same_steps(tmp_path, make, read) -> None:
    log = Received(3)
    train(make(tmp_path), log)
    names = {name for _, metrics in log.metrics for name in metrics}
    assert read(tmp_path) == {name: [step for step, _ in log.series(name)] for name in names}


# ---------------------------------------------------------------------------------------------------- failing trackers


class Failing(Received):
    """Fails wherever it is reported to."""

    def __init__(self, where: str) -> None:
        super().__init__()
        self.where = where

    def __getattribute__(self, name):
        if name == object.__getattribute__(self, "__dict__").get("where"):

            def fail(*args, **kwargs):
                raise ConnectionError("tracker is down")

            return fail
        return object.__getattribute__(self, name)


class FailingHook(Received):
    def batch_end(self, state, logger):
        raise ConnectionError("tracker is down")


FAILURES = [Failing("log_metrics"), Failing("__due__"), Failing("log_table"), Failing("log_images"), FailingHook()]


@pytest.mark.parametrize("failing", FAILURES, ids=lambda f: getattr(f, "where", "hook"))
def test_LogAxis_a_failing_tracker_does_not_stop_training(failing) -> None:
    healthy, alone = Received(), Received()
    with pytest.warns(ComposerWarning, match="failed and may have lost log records; training continues") as caught:
        trainer = train(failing, healthy)
    assert len(caught) == 1  # once for the destination, not for each value
    assert "ConnectionError: tracker is down" in str(caught[0].message)
    twin = train(alone)
    assert healthy.metrics == alone.metrics
    assert torch.equal(weights(trainer), weights(twin))


@pytest.mark.parametrize("failing", [Failing("log_metrics"), Failing("__due__"), FailingHook()])
def test_LogAxis_a_failing_tracker_stops_training_if_asked_to(failing) -> None:
    trainer = trainer_of(loggers=failing, on_logger_error="raise")
    with pytest.raises(ConnectionError, match="tracker is down"):
        trainer.fit()
    assert trainer.state.timestamp.batch <= 1


def test_a_failing_close_of_a_tracker_is_reported(caplog) -> None:
    trainer = trainer_of(loggers=Failing("close"))
    trainer.fit()
    trainer.close()
    assert "Failing.close failed" in caplog.text


def test_tracker_failing_at_init_raises() -> None:
    class Refused(Received):
        def init(self, state, logger):
            raise PermissionError("no such project")

    with pytest.raises(PermissionError, match="no such project"):
        trainer_of(loggers=Refused())


def test_failing_callbacks_always_stop_training() -> None:
    with pytest.raises(ConnectionError):
        trainer_of(callbacks=At("batch_end", lambda state: (_ for _ in ()).throw(ConnectionError))).fit()
