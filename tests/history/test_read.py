"""Histories of real runs, of files that were damaged, and of folders with several logs."""

from __future__ import annotations

import json
import math
import os
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from composer import Callback
from composer.history import History
from composer.loggers import CSVLogger, FileLogger, JSONLinesLogger
from tests.common import Regression, regression_data, trainer_of

LOSS = "loss/train/total"


class Crash(Callback):
    """Ends the process, so to speak, after some batches."""

    def __init__(self, batch: int) -> None:
        self.batch = batch

    def batch_end(self, state: Any, logger: Any) -> None:
        if state.timestamp.batch == self.batch:
            logger.flush()
            raise KeyboardInterrupt


def train(folder: Path, *callbacks: Callback, duration: str = "3ep") -> Any:
    """Train an epoch of four batches after the other; saved after each."""
    trainer = trainer_of(
        Regression(metrics=True),
        max_duration=duration,
        loggers=[
            JSONLinesLogger(f"{folder}/{{run_name}}/log.jsonl", flush_interval=1),
            CSVLogger(f"{folder}/{{run_name}}/metrics.csv", flush_interval=1),
        ],
        callbacks=list(callbacks),
        eval_dataloader=regression_data(1),
        save_folder=f"{folder}/{{run_name}}/checkpoints",
        run_name="night",
        autoresume=True,
    )
    with trainer:
        trainer.fit()
    return trainer


@pytest.fixture(scope="module")
def folder(tmp_path_factory: Any) -> Path:
    """A run that crashed after batch 6 and after batch 11."""
    path = tmp_path_factory.mktemp("runs")
    for crash in (6, 11):
        with pytest.raises(KeyboardInterrupt):
            train(path, Crash(crash))
    train(path)
    return path / "night"


@pytest.mark.parametrize("path", ["", "log.jsonl", "metrics.csv"])
def test_a_resumed_run(folder: Path, path: str) -> None:
    history = History.read(folder / path)
    assert history.name == "night"
    assert history[LOSS].step.tolist() == list(range(12))
    # The records of steps 4 and 8, the first ones after a checkpoint, were the same again.
    assert history.replaced[LOSS].step.tolist() == [5, 9, 10]
    # An evaluation before the checkpoint is neither replaced nor doubled; training is exact, so that values are equal.
    assert history["eval/MeanSquaredError"].step.tolist() == [4, 8, 12]
    assert "metrics/eval/MeanSquaredError" not in history.replaced
    by_step = dict(zip(history[LOSS].step.tolist(), history[LOSS].values.tolist(), strict=True))
    lost = history.replaced[LOSS]
    assert [by_step[step] for step in lost.step.tolist()] == lost.values.tolist()
    seconds = history[LOSS].over("seconds").tolist()
    assert seconds == sorted(seconds)
    assert [one.name.count(".") for one in history.files] == [1, 2, 2]
    assert history.remarks == []


def test_hyperparameters_are_in_json_lines(folder: Path) -> None:
    assert "rank_zero_seed" in History.read(folder).hyperparameters
    assert History.read(folder / "metrics.csv").hyperparameters == {}


def test_both_logs_have_the_same_values(folder: Path) -> None:
    lines, table = History.read(folder), History.read(folder / "metrics.csv")
    assert list(lines.series) == list(table.series)
    for name, series in lines.series.items():
        assert series.step.tolist() == table[name].step.tolist(), name
        assert series.values.tolist() == table[name].values.tolist(), name
    assert lines[LOSS].over("sample").tolist() == [2 * step for step in range(12)]
    assert table[LOSS].sample is None


def test_an_earlier_run_of_the_same_name_is_another_run(tmp_path: Path) -> None:
    for duration in ("1ep", "2ep"):
        trainer = trainer_of(
            Regression(), max_duration=duration, loggers=JSONLinesLogger(f"{tmp_path}/log.jsonl"), run_name="night"
        )
        with trainer:
            trainer.fit()
    history = History.read(tmp_path)
    assert len(history[LOSS]) == 8
    assert not history.replaced
    assert [one.name for one in history.files] == ["log.jsonl"]
    assert len(History.read(tmp_path / "log.1.jsonl")[LOSS]) == 4


def record(step: int, **values: Any) -> str:
    return json.dumps({"kind": "metrics", "step": step, "epoch": 0, "seconds": float(step), "values": values}) + "\n"


def test_a_torn_last_line_is_left_out(tmp_path: Path) -> None:
    path = tmp_path / "night.jsonl"
    path.write_text(record(0, loss=1) + record(1, loss="NaN") + record(2, loss=3)[:-9])
    history = History.read(path)
    assert history.name == "night"
    assert history["loss"].step.tolist() == [0, 1]
    assert history.remarks == ["the last line of night.jsonl is incomplete, and was left out"]
    table = tmp_path / "day.csv"
    table.write_text("step,epoch,seconds,loss\n0,0,0.0,1.5\n1,0,0.5,Infinity\n2,0,1.0,0.12")
    history = History.read(table)
    assert history["loss"].values.tolist() == [1.5, float("inf")]
    assert history.remarks == ["the last row of day.csv is incomplete, and was left out"]


def test_other_lines_must_be_records(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    for damage in ("\0\0\0\n", "[1]\n", '{"kind": "metrics", "step": 1' + 30 * "0" + ', "values": {"loss": 1}}\n'):
        path.write_text(record(0, loss=1) + damage + record(1, loss=2))
        with pytest.raises(ValueError, match=r"log.jsonl, line 2, is not a record of JSONLinesLogger. Remove the line"):
            History.read(path)
    table = tmp_path / "metrics.csv"
    for damage, message in (("1,0,0.5,1,2\n", "line 3, has 5 cells"), ("x,0,0.5,1\n", "line 3, does not begin with")):
        table.write_text(f"step,epoch,seconds,loss\n0,0,0.0,1.5\n{damage}2,0,1.0,0.12\n")
        with pytest.raises(ValueError, match=message):
            History.read(table)


def test_records_of_other_kinds(tmp_path: Path) -> None:
    lines = [
        {"kind": "environment", "values": {"versions": {"torch": "2.13.0"}}},
        {"kind": "table", "step": 3, "name": "T", "columns": ["a"], "rows": [[1]]},
        {"kind": "traces", "step": 0, "values": {"trace": 1}},
        {"kind": "event", "event": "checkpoint", "step": 4, "seconds": 0.5, "time": 1e9, "text": "ep1.pt"},
        {"kind": "of a later version", "values": [1]},
        {"kind": "metrics", "step": 0, "values": {"matrix": [[1, 2], [3, 4]]}},
    ]
    (tmp_path / "log.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    history = History.read(tmp_path)
    assert history.environment["versions"] == {"torch": "2.13.0"}
    assert (history.tables["T"].rows, history.tables["T"].step) == ([[1]], 3)
    (event,) = history.events
    assert (event.kind, event.step, event.text, event.seconds, event.time) == ("checkpoint", 4, "ep1.pt", 0.5, 1e9)
    assert history.arrays["matrix"].values.shape == (2, 2)


def test_folders(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"has no log .*; the folder is empty\. Pass the Trainer loggers="):
        History.read(tmp_path)
    run = tmp_path / "night"
    run.mkdir()
    (run / "spikes.jsonl").write_text('{"batch": 3}\n')
    (run / "data.csv").write_text("a,b\n1,2\n")
    with pytest.raises(FileNotFoundError, match=r"but data\.csv, spikes.jsonl"):
        History.read(run)
    (run / "log.jsonl").write_text(record(0, loss=1))
    assert History.read(run).name == History.read(tmp_path).name == "night"
    (tmp_path / "day").mkdir()
    (tmp_path / "day" / "metrics.csv").write_text("step,epoch,seconds,loss\n0,0,0.0,1.5\n")
    with pytest.raises(ValueError, match=r"has 2 logs; pass one of them: day/metrics.csv, night/log.jsonl\."):
        History.read(tmp_path)
    with pytest.raises(FileNotFoundError, match=r"no run .*'. Did you mean 'night'\?"):
        History.read(tmp_path / "nigth")
    with pytest.raises(ValueError, match=r"data.csv' is not a log .*: it begins with b'a,b"):
        History.read(run / "data.csv")
    (run / "empty.csv").touch()
    with pytest.raises(ValueError, match="it is empty"):
        History.read(run / "empty.csv")


@pytest.mark.parametrize("place", ["", "night"])
@pytest.mark.parametrize(("name", "content"), [("log.jsonl", b""), ("metrics.csv", b""), ("log.jsonl", b"\0" * 100)])
def test_a_log_in_a_folder_that_cannot_be_read_is_named(tmp_path: Path, place: str, name: str, content: bytes) -> None:
    log = tmp_path / place / name
    log.parent.mkdir(exist_ok=True)
    log.write_bytes(content)
    reason = "it begins with" if content else "it is empty"
    with pytest.raises(ValueError, match=f"{re.escape(name)}' is not a log of JSONLinesLogger or CSVLogger: {reason}"):
        History.read(tmp_path)


def test_links_that_lead_out_and_pipes_are_not_read(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.mkdir()
    (secret / "log.jsonl").write_text(record(0, loss=1))
    run = tmp_path / "run"
    run.mkdir()
    os.mkfifo(run / "pipe.csv")  # opening it would wait for a writer
    (run / "folder.jsonl").mkdir()
    (run / "log.jsonl").symlink_to(secret / "log.jsonl")
    (run / "deep").symlink_to(secret)
    with pytest.raises(FileNotFoundError, match=r"log\.jsonl \(a link to elsewhere, which is not followed\)"):
        History.read(run)
    with pytest.raises(ValueError, match=r"pipe\.csv' is not a file"):
        History.read(run / "pipe.csv")
    (run / "log.jsonl").unlink()
    (run / "log.jsonl").write_text(record(0, loss=2))
    (run / "log.1.jsonl").symlink_to(secret / "log.jsonl")
    assert History.read(run).files == (run / "log.jsonl",)
    assert History.read(run / "deep")["loss"].last == 1  # named by the caller


def test_long_first_lines_are_recognized(tmp_path: Path) -> None:
    """A resumed log of records that are longer than a block."""
    values = {f"metric{number}": float(number) for number in range(60_000)}
    lines = [record(step, **values) for step in range(4)]
    assert len(lines[0]) > 1 << 20
    (tmp_path / "log.jsonl").write_text("".join(lines[:3]))
    (tmp_path / "log.1.jsonl").write_text("".join([*lines[:2], record(2, metric0=9.0)]))
    history = History.read(tmp_path)
    assert history["metric59999"].last == 59999
    assert history.replaced["metric0"].values.tolist() == [9.0]


def test_a_table_beside_a_text_log_has_its_tables_and_hyperparameters(tmp_path: Path) -> None:
    def train(name: str) -> Any:
        loggers = [CSVLogger(f"{tmp_path}/{{run_name}}/metrics.csv"), FileLogger(f"{tmp_path}/{{run_name}}/logs.txt")]
        trainer = trainer_of(Regression(), max_duration="1ep", loggers=loggers, run_name=name)
        trainer.logger.log_hyperparameters({"rate": "1: 2"})
        trainer.logger.log_table(["a", "b"], [[1, 'x": {"columns": '], [None, 2.5]], name="T: U")
        trainer.fit()
        print('[table]: forged: {"columns": [], "data": []}')
        trainer.close()

    train("night")
    history = History.read(tmp_path / "night")
    assert history.hyperparameters["rate"] == "1: 2"
    assert isinstance(history.hyperparameters["rank_zero_seed"], int)
    assert {name: (one.columns, one.rows) for name, one in history.tables.items()} == {
        "T: U": (["a", "b"], [[1, 'x": {"columns": '], [None, 2.5]])
    }
    with (tmp_path / "night" / "logs.txt").open("a") as file:
        file.write('[table]: bad: {"columns": 3}\n[table]: deep: {"columns": ' + "[" * 100_000 + "\n[table]: torn: {")
    assert list(History.read(tmp_path / "night").tables) == ["T: U"]
    (tmp_path / "night" / "other.txt").write_text("[hyperparameter]: lr: 1\n")  # whose run is it?
    assert History.read(tmp_path / "night").tables == {}


HEADER = "step,epoch,seconds,loss\n"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (HEADER + '0,0,0,"1\n1,0,1,2\n', "no valid CSV"),
        (HEADER + f"{'9' * 30},0,0,1\n", "line 2, does not begin with step"),
        ((HEADER + "0,0,0,\xf6\n").encode("latin-1"), "not in UTF-8"),
    ],
)
def test_other_tables_are_refused(tmp_path: Path, content: str | bytes, message: str) -> None:
    path = tmp_path / "metrics.csv"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(ValueError, match=re.escape(message)) as caught:
        History.read(path)
    assert str(path) in str(caught.value)


def test_tables_with_long_cells_and_of_spreadsheets(tmp_path: Path) -> None:
    matrix = [[1.0] * 400] * 400
    text = f'{HEADER}0,0,0,"{matrix}"\n1,0,1,{"[" * 5000}\n2,0,2,0.5\n3,0,3,"torn'
    (tmp_path / "metrics.csv").write_bytes(b"\xef\xbb\xbf" + text.encode())
    history = History.read(tmp_path)
    assert history.arrays["loss"].values.shape == (400, 400)
    assert history["loss"].values.tolist() == [0.5]
    assert history.remarks == ["the last row of metrics.csv is incomplete, and was left out"]


@pytest.mark.parametrize(
    "record",
    [
        {"kind": "table", "columns": ["a"], "rows": [1]},
        {"kind": "model", "columns": ["a"], "rows": [1]},
    ],
)
def test_tables_whose_rows_are_no_lists(tmp_path: Path, record: dict[str, Any]) -> None:
    first = {"kind": "metrics", "step": 0, "seconds": 0.5, "values": {"loss": 1.0}}
    path = tmp_path / "log.jsonl"
    path.write_text("".join(json.dumps(one) + "\n" for one in (first, record, first)), encoding="utf-8")
    with pytest.raises(ValueError, match=r"line 2, is not a record"):
        History.read(path)


def test_times_that_are_not_finite_are_unknown(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    record = {"kind": "metrics", "step": 0, "epoch": math.inf, "seconds": math.nan, "values": {"loss": 1.0}}
    path.write_text(json.dumps(record) + "\n" + json.dumps({**record, "kind": "event", "event": "end"}) + "\n")
    history = History.read(path)
    assert history.seconds is None
    assert history["loss"].epoch is None
    assert history.events[0].seconds is None


def test_files_have_what_the_history_of_the_run_has(tmp_path: Path) -> None:
    class Log(Callback):
        def batch_end(self, state: Any, logger: Any) -> None:
            number = float(state.timestamp.batch)
            values = {"vector of one": torch.tensor([number]), "matrix of one": torch.full((1, 1), number)}
            values |= {"NaN": torch.tensor([math.nan]), "list": [number], "eye": torch.eye(2).to_sparse()}
            names = {"step": number, "metrics/step": number + 1, "metrics/metrics/step": number + 2, "epoch": 0.25}
            logger.log_metrics({**values, **names})

    paths = [tmp_path / "log.jsonl", tmp_path / "metrics.csv"]
    loggers = [JSONLinesLogger(str(paths[0])), CSVLogger(str(paths[1]))]
    with trainer_of(max_duration="3ba", loggers=loggers, callbacks=Log()) as trainer:
        trainer.fit()
        live = trainer.history
    assert live["vector of one"].values.tolist() == [1, 2, 3]
    for path in paths:
        read = History.read(path)
        assert set(read.series) == set(live.series), path
        for name, series in live.series.items():
            np.testing.assert_array_equal(read[name].values, series.values, err_msg=f"{name} in {path}")
        assert read.arrays["eye"].values.tolist() == live.arrays["eye"].values.tolist() == [[1, 0], [0, 1]]


@pytest.mark.parametrize("form", ["jsonl", "csv"])
def test_secrets_that_no_logger_has_masked_are_masked(tmp_path: Path, form: str) -> None:
    if form == "jsonl":
        lines: list[Any] = [
            {"kind": "hyperparameters", "values": {"password": "hunter2", "db": [{"api_key": "hunter2"}], "lr": 0.1}},
            {"kind": "environment", "values": {"versions": {"torch": "2.9"}, "hf_token": "hunter2"}},
            {
                "kind": "event",
                "event": "error",
                "step": 1,
                "text": "s3://me:hunter2@host",
                "details": {"token": "hunter2"},
            },
            {"kind": "metrics", "step": 1, "epoch": 0, "seconds": 1.0, "values": {"loss": 1.0}},
        ]
        (tmp_path / "log.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    else:
        (tmp_path / "metrics.csv").write_text("step,epoch,seconds,loss\n1,0,1.0,1.0\n")
        texts = ["password: hunter2", "db: {'api_key': 'hunter2'}", "lr: 0.1"]
        (tmp_path / "logs.txt").write_text("".join(f"[hyperparameter]: {text}\n" for text in texts))
    history = History.read(tmp_path)
    assert history.hyperparameters["password"] == "***"
    assert float(history.hyperparameters["lr"]) == 0.1
    assert "hunter2" not in repr([history.hyperparameters, history.environment, history.events])
    assert len(history.events) == (form == "jsonl")
