"""The log files of a run that was stopped and resumed have each value of the uninterrupted run, once."""

from __future__ import annotations

import csv
import json
import shutil
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from composer import Callback, Evaluator, Event, Trainer
from composer.loggers import CSVLogger, JSONLinesLogger
from composer.models import ComposerClassifier
from composer.warnings import ComposerWarning
from tests.common import At

SAVED = "within.pt"


class StopAt(Callback):
    """Copies the folder of the run at an event, as a kill would leave it, after a number of batches."""

    def __init__(self, event: str, batch: int, label: str | None, copy: Path, saves: bool = False) -> None:
        self.place, self.label, self.copy, self.saves = (Event(event), batch), label, copy, saves
        self.trainer: Trainer | None = None

    def run_event(self, event: Event, state: Any, logger: Any) -> None:
        here = self.place == (event, int(state.train_phase.timestamp.batch))
        if here and self.label in (None, state.dataloader_label) and not self.copy.exists():
            if self.saves and self.trainer is not None:
                self.trainer.save_checkpoint(SAVED)
            shutil.copytree(".", self.copy, symlinks=True)


def trainer(*callbacks: Callback, interval: int, duration: str, evaluated: str | None = None, **more: Any) -> Trainer:
    """A run of epochs of 6 batches in the current folder, with two evaluators if an interval is given."""
    torch.manual_seed(0)
    data = TensorDataset(torch.randn(24, 4), torch.arange(24) % 3)
    network, labels = nn.Linear(4, 3), () if evaluated is None else ("one", "two")
    found = Trainer(
        model=ComposerClassifier(network, num_classes=3),
        train_dataloader=DataLoader(data, 4),
        eval_dataloader=[Evaluator(label=label, dataloader=DataLoader(data, 8), eval_interval=evaluated or 1)
                         for label in labels],
        optimizers=torch.optim.SGD(network.parameters(), lr=0.1),
        max_duration=duration,
        callbacks=list(callbacks),
        loggers=[CSVLogger("log.csv", flush_interval=interval), JSONLinesLogger("log.jsonl", flush_interval=interval)],
        run_name="night",
        save_folder="saved",
        save_metrics=True,
        progress_bar=False,
        **more,
    )  # fmt: skip
    for callback in callbacks:
        if isinstance(callback, StopAt):
            callback.trainer = found
    return found


def logged(*names: str) -> tuple[list[Any], list[Any]]:
    """The losses and metrics in both files, with their steps; all, or those whose names begin so."""
    chosen = names or ("loss/", "metrics/")
    records = [json.loads(line) for line in Path("log.jsonl").read_text().splitlines()]
    lines = [(one["step"], name, value) for one in records if one["kind"] == "metrics"
             for name, value in one["values"].items() if name.startswith(chosen)]  # fmt: skip
    with Path("log.csv").open() as file:
        rows = [(row["step"], name, value) for row in csv.DictReader(file)
                for name, value in row.items() if value and name.startswith(chosen)]  # fmt: skip
    return lines, rows


@pytest.mark.parametrize(
    ("event", "batch", "options"),
    [
        ("eval_start", 8, {"interval": 3, "duration": "8ba", "evaluated": "1ep", "save_interval": "2ba"}),
        ("fit_end", 8, {"interval": 3, "duration": "8ba", "save_interval": "2ba"}),
        ("fit_end", 12, {"interval": 1, "duration": "2ep", "save_interval": "2ba"}),
        ("epoch_end", 6, {"interval": 4, "duration": "2ep", "save_interval": "2ba"}),
        ("batch_end", 7, {"interval": 1, "duration": "2ep", "save_interval": "2ba"}),
        ("batch_end", 8, {"interval": 5, "duration": "9ba", "save_interval": "3ba"}),
        ("batch_end", 8, {"interval": 4, "duration": "2ep", "save_interval": "1ep"}),
    ],
)
def test_training_metrics_are_there_once(
    event: str, batch: int, options: Any, tmp_path: Path, monkeypatch: Any
) -> None:
    (tmp_path / "whole").mkdir()
    monkeypatch.chdir(tmp_path / "whole")
    trainer(StopAt(event, batch, None, tmp_path / "stopped"), **options).fit()
    expected = logged()
    monkeypatch.chdir(tmp_path / "stopped")
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "autoresume: this call of fit is already complete", ComposerWarning)
        trainer(autoresume=True, **options).fit()
    assert logged() == expected


@pytest.mark.parametrize("evaluated", [None, "4ba"])
@pytest.mark.parametrize("interval", [1, 3])
def test_a_complete_run_that_is_started_again_keeps_its_files(
    interval: int, evaluated: str | None, tmp_path: Path, monkeypatch: Any
) -> None:
    """What was logged after the last checkpoint is not logged again."""
    monkeypatch.chdir(tmp_path)
    options: dict[str, Any] = {"duration": "8ba", "evaluated": evaluated, "save_interval": "8ba", "autoresume": True}
    found: list[Any] = []
    for number in range(2):
        log = Log()
        run = trainer(At("fit_end", log.add), interval=interval, **options)
        log.trainer = run
        if number:
            with pytest.warns(ComposerWarning, match="already complete"):
                run.fit()
        else:
            run.fit()
        run.close()
        found.append((logged(), [line for line in Path("log.csv").read_text().splitlines() if "time/" not in line]))
    assert found[0] == found[1] and not list(tmp_path.glob("log.1.*"))


class Log:
    """Logs a metric at the end of training."""

    trainer: Trainer | None = None

    def add(self, state: Any) -> None:
        assert self.trainer is not None
        self.trainer.logger.log_metrics({"metrics/last": 1.5})


def test_evaluators_that_had_completed_are_not_run_again_after_a_stop(tmp_path: Path, monkeypatch: Any) -> None:
    (tmp_path / "whole").mkdir()
    monkeypatch.chdir(tmp_path / "whole")
    options: dict[str, Any] = {"interval": 1, "duration": "8ba", "evaluated": "2ba", "save_interval": "8ba"}
    trainer(StopAt("eval_batch_end", 4, "two", tmp_path / "stopped", saves=True), **options).fit()
    expected = logged("loss/", "metrics/one", "metrics/two")  # the training metrics before the save are not saved
    monkeypatch.chdir(tmp_path / "stopped")
    ran = At("eval_end", lambda state: (int(state.train_phase.timestamp.batch), state.dataloader_label))
    trainer(ran, load_path=SAVED, **options).fit()
    assert logged("loss/", "metrics/one", "metrics/two") == expected
    assert ran.found == [(4, "two"), (6, "one"), (6, "two"), (8, "one"), (8, "two")]


def test_evaluators_that_had_completed_are_not_run_again_after_an_exception(tmp_path: Path, monkeypatch: Any) -> None:
    (tmp_path / "whole").mkdir()
    monkeypatch.chdir(tmp_path / "whole")
    options: dict[str, Any] = {"interval": 1, "duration": "8ba", "evaluated": "2ba", "save_interval": "8ba"}
    trainer(**options).fit()
    expected = logged()

    def fail(state: Any) -> None:
        if not failed and state.dataloader_label == "two" and state.train_phase.timestamp.batch == 4:
            failed.append(True)
            raise RuntimeError("once")

    failed: list[bool] = []
    (tmp_path / "failed").mkdir()
    monkeypatch.chdir(tmp_path / "failed")
    run = trainer(At("eval_batch_start", fail), **options)
    with pytest.raises(RuntimeError, match="once"):
        run.fit()
    run.fit()
    assert logged() == expected
