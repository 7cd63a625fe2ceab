from __future__ import annotations

import csv
import math
import os

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from composer import dist
from composer.core import Callback, Logger, State
from composer.core.timestamp import Timestamp
from composer.history import History
from composer.loggers import CSVLogger
from tests.common import Regression, regression_data, trainer_of
from tests.loggers.files import Uploads, in_own_folder, resumed, run
from tests.loggers.loop import Loop

CASE = {"make": in_own_folder(lambda folder: CSVLogger(f"{folder}/metrics.csv"))}


def rows_of(path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file, strict=True))


def test_one_row_per_step(tmp_path) -> None:
    run(CSVLogger(f"{tmp_path}/{{run_name}}/metrics.csv")).close()
    rows = rows_of(tmp_path / "test" / "metrics.csv")
    assert list(rows[0]) == ["step", "epoch", "seconds", "loss/train/total", "time/batch", "metrics/eval/Accuracy"]
    assert [row["step"] for row in rows] == [str(step) for step in range(9)]
    losses = [float(row["loss/train/total"]) for row in rows[:8]]
    np.testing.assert_array_equal(losses, np.float32(1) / np.arange(1, 9, dtype=np.float32))
    assert [row["metrics/eval/Accuracy"] for row in rows] == [""] * 4 + ["0.5"] + [""] * 3 + ["0.5"]
    assert [row["epoch"] for row in rows] == list("000011112")


def test_each_value_has_its_epoch_when_it_is_read_again(tmp_path) -> None:
    """Of a step that ends an epoch, the batch is counted before, and its evaluation and the next loss come after."""
    at_the_end = {"batch_end": {"rate": 0.5}, "epoch_end": {"score": 1.0}}

    class Logs(Callback):
        def batch_end(self, state, logger) -> None:
            if rates:
                logger.log_metrics(at_the_end["batch_end"])

        def epoch_end(self, state, logger) -> None:
            logger.log_metrics(at_the_end["epoch_end"])

    for rates in (False, True):
        path = tmp_path / f"{rates}.csv"
        data = regression_data(3, 4)
        with trainer_of(data=data, max_duration="3ep", loggers=[CSVLogger(str(path))], callbacks=[Logs()]) as trainer:
            trainer.fit()
            live = trainer.history
        found = History.read(path)
        for name in live:
            assert found[name].step.tolist() == live[name].step.tolist()
            assert found[name].over("epoch").tolist() == live[name].over("epoch").tolist(), name
        assert found["score"].over("epoch").tolist() == [1, 2, 3]
        # A row of its own only if there is something in both epochs.
        assert len(rows_of(path)) == 10 + (3 if rates else 0)


def test_columns_grow_and_no_row_is_lost(tmp_path) -> None:
    path = tmp_path / "metrics.csv"
    logger = CSVLogger(str(path))
    loop = Loop([logger]).init()
    loop.fire("fit_start")
    for step in range(20):
        loop.logger.log_metrics({f"metric{step // 4}": step}, step=step)
        rows = rows_of(path)
        assert len(rows) == step + 1
        assert [row[f"metric{k // 4}"] for k, row in enumerate(rows)] == [str(k) for k in range(step + 1)]
        assert {len(line) for line in csv.reader(path.read_text().splitlines())} == {3 + step // 4 + 1}
    loop.close()


def test_a_metric_logged_twice_at_a_step_gets_two_rows(tmp_path) -> None:
    path = tmp_path / "metrics.csv"
    loop = Loop([CSVLogger(str(path))]).init()
    loop.fire("fit_start")
    for values in ({"a": 1}, {"b": 2}, {"a": 3}, {"b": 4, "c": 5}):
        loop.logger.log_metrics(values, step=7)
    loop.close()
    rows = rows_of(path)
    assert [(row["step"], row["a"], row["b"], row["c"]) for row in rows] == [("7", "1", "2", ""), ("7", "3", "4", "5")]


ENTRIES = st.lists(
    st.tuples(
        st.integers(0, 3),
        st.dictionaries(
            st.sampled_from(["a", "step", "metrics/step", "x,y"]), st.floats(allow_nan=False) | st.text(), min_size=1
        ),
        st.booleans(),
    )
)


@settings(max_examples=40)
@given(ENTRIES)
def test_every_value_can_be_read_back(tmp_path_factory, entries) -> None:
    path = tmp_path_factory.mktemp("csv") / "metrics.csv"
    logger = CSVLogger(str(path))
    state = State(torch.nn.Linear(1, 1))
    where = Logger(state, logger)
    logger.init(state, where)
    where.deferred = True
    for step, metrics, write in entries:
        where.log_metrics(metrics, step=step)
        if write:
            where.flush()
            logger.epoch_end(state, where)
    where.flush()
    logger.close(state, where)
    names = {"a": "a", "step": "metrics/step", "metrics/step": "metrics/metrics/step", "x,y": "x,y"}
    found = {name: [] for name in names}
    for row in rows_of(path) if entries else []:
        for name, column in names.items():
            if row.get(column):
                found[name].append((int(row["step"]), row[column]))
    for name in names:
        expected = [(step, m[name]) for step, m, _ in entries if name in m and m[name] != ""]
        texts = [
            (step, v if isinstance(v, str) else {math.inf: "Infinity", -math.inf: "-Infinity"}.get(v, repr(v)))
            for step, v in expected
        ]
        assert found[name] == texts


def test_non_numeric_values(tmp_path) -> None:
    path = tmp_path / "metrics.csv"
    loop = Loop([CSVLogger(str(path))]).init()
    loop.logger.log_metrics(
        {"nan": float("nan"), "word": 'a "b",\nc', "none": None, "matrix": torch.eye(2), "flag": True, "epoch": 3}
    )
    loop.close()
    (row,) = rows_of(path)
    assert row == {
        "step": "0",
        "epoch": "0",
        "seconds": "0.0",
        "nan": "NaN",
        "word": 'a "b",\nc',
        "none": "",
        "matrix": "[[1.0, 0.0], [0.0, 1.0]]",
        "flag": "true",
        "metrics/epoch": "3",
    }
    assert math.isnan(float(row["nan"]))


def test_the_time_of_logging(tmp_path) -> None:
    logger = CSVLogger(f"{tmp_path}/metrics.csv")
    logger.__receive__({"x": 1}, 5, Timestamp(epoch=2, total_wct=1.5))
    logger.log_metrics({"x": 2})
    state = State(torch.nn.Linear(1, 1))
    logger.close(state, Logger(state))
    rows = rows_of(tmp_path / "metrics.csv")
    assert [list(row.values()) for row in rows] == [["5", "2", "1.5", "1"], ["0", "0", "0.0", "2"]]


@pytest.mark.parametrize("overwrite", [False, True])
def test_a_file_of_an_earlier_run(tmp_path, overwrite: bool) -> None:
    for _ in range(3):
        run(CSVLogger(f"{tmp_path}/metrics.csv", overwrite=overwrite), max_duration="4ba").close()
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names == (["metrics.csv"] if overwrite else ["metrics.1.csv", "metrics.2.csv", "metrics.csv"])
    assert {len(rows_of(path)) for path in tmp_path.iterdir()} == {5}


@pytest.mark.parametrize(("stop", "crash"), [(2, 2), (2, 3), (3, 7), (4, 4), (4, 6), (5, 8)])
def test_a_resumed_run_has_the_file_of_an_uninterrupted_one(tmp_path, stop: int, crash: int) -> None:
    run(CSVLogger(f"{tmp_path}/straight.csv"), max_duration="8ba").close()
    resumed(lambda: CSVLogger(f"{tmp_path}/torn.csv"), stop, crash)
    assert (tmp_path / "torn.csv").read_text() == (tmp_path / "straight.csv").read_text()
    kept = tmp_path / "torn.1.csv"
    assert kept.exists() is (crash > stop)
    if crash > stop:
        assert rows_of(kept)[crash - 1]["step"] == str(crash - 1)


@pytest.mark.parametrize("cut", [1, 3, 9])
def test_a_row_that_a_crash_of_the_host_cut_off_is_that_of_the_checkpoint(tmp_path, cut: int) -> None:
    run(CSVLogger(f"{tmp_path}/straight.csv"), max_duration="8ba").close()
    path = tmp_path / "torn.csv"

    def make() -> CSVLogger:
        if path.exists():
            os.truncate(path, path.stat().st_size - cut)
        return CSVLogger(str(path))

    resumed(make, 4, 4)
    assert path.read_text() == (tmp_path / "straight.csv").read_text()


def test_a_resumed_run_with_another_name_starts_a_new_file(tmp_path) -> None:
    logger = CSVLogger(f"{tmp_path}/{{run_name}}.csv")
    loop = run(logger, max_duration="2ba")
    saved = logger.state_dict()
    loop.close()
    assert (saved["run_name"], saved["file"], saved["rows"]) == ("test", f"{tmp_path}/test.csv", 2)
    other = CSVLogger(f"{tmp_path}/{{run_name}}.csv")
    other.load_state_dict({**saved, "run_name": "older"})
    run(other, max_duration="1ba").close()
    assert len(rows_of(tmp_path / "test.csv")) == 1
    assert len(rows_of(tmp_path / "test.1.csv")) == 2


def test_without_a_value_there_is_no_file(tmp_path) -> None:
    loop = Loop([CSVLogger(f"{tmp_path}/metrics.csv", "metrics.csv"), Uploads()]).init()
    loop.fire("fit_start")
    loop.close()
    assert list(tmp_path.iterdir()) == []


def test_the_file_is_uploaded(tmp_path) -> None:
    uploads = Uploads()
    run(CSVLogger(f"{tmp_path}/metrics.csv", "{run_name}/table.csv"), uploads).close()
    assert uploads.texts == {"test/table.csv": (tmp_path / "metrics.csv").read_text()}


def test_nothing_is_read_between_intervals(tmp_path) -> None:
    path = tmp_path / "metrics.csv"
    logger = CSVLogger(str(path), flush_interval=3)
    loop = Loop([logger], "100ba", length=100).init()
    loop.fire("fit_start")
    loop.logger.deferred = True
    lengths = []
    for _ in range(7):
        loop.batch()
        lengths.append(len(rows_of(path)) if path.exists() else 0)
    assert lengths == [0, 0, 3, 3, 3, 6, 6]
    loop.logger.suspend()
    loop.close()
    assert len(rows_of(path)) == 7


def test_only_rank_0_writes_unless_the_name_has_the_rank(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(dist, "get_global_rank", lambda: 1)
    logger = CSVLogger(f"{tmp_path}/metrics.csv")
    loop = run(logger)
    assert logger.state_dict() == {}
    loop.close()
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "metrics.csv").write_text("of the first process")
    run(CSVLogger(f"{tmp_path}/metrics.csv")).close()
    assert [path.name for path in tmp_path.iterdir()] == ["metrics.csv"]
    (tmp_path / "metrics.csv").unlink()
    run(CSVLogger(f"{tmp_path}/metrics-{{rank}}.csv")).close()
    assert [path.name for path in tmp_path.iterdir()] == ["metrics-1.csv"]


def test_in_a_real_run(tmp_path) -> None:
    logger = CSVLogger(f"{tmp_path}/{{run_name}}.csv")
    assert logger.filename == f"{tmp_path}/{{run_name}}.csv"
    with trainer_of(
        Regression(metrics=True), max_duration="2ep", loggers=logger, eval_dataloader=regression_data(1), run_name="r"
    ) as trainer:
        trainer.fit()
        assert logger.filename == f"{tmp_path}/r.csv"
        rows = rows_of(tmp_path / "r.csv")
    assert [row["step"] for row in rows if row["loss/train/total"]] == [str(step) for step in range(8)]
    assert [row["step"] for row in rows if row["metrics/eval/MeanSquaredError"]] == ["4", "8"]
    seconds = [float(row["seconds"]) for row in rows]
    assert seconds == sorted(seconds)
    assert seconds[-1] > 0


def test_bad_arguments() -> None:
    with pytest.raises(ValueError, match=r"filename='\{run_nam\}' has the unknown placeholder"):
        CSVLogger("{run_nam}")
    with pytest.raises(ValueError, match=r"remote_file_name='\{x\}' has the unknown placeholder"):
        CSVLogger("a", "{x}")
    with pytest.raises(ValueError, match="flush_interval must be greater than 0"):
        CSVLogger("a", flush_interval=0)


def test_a_matrix_of_many_classes(tmp_path) -> None:
    path = tmp_path / "metrics.csv"
    loop = Loop([CSVLogger(str(path))]).init()
    loop.fire("fit_start")
    loop.logger.log_metrics({"matrix": torch.full((400, 400), 7)}, step=1)
    loop.logger.log_metrics({"later": 1}, step=2)  # a new column rewrites the file
    loop.close()
    history = History.read(path)
    assert history.arrays["matrix"].values.shape == (400, 400)
    assert history["later"].step.tolist() == [2]
