from __future__ import annotations

import json
import os

import pytest
import torch

from composer import dist
from composer.core import Logger, State
from composer.core.timestamp import Timestamp
from composer.history import History
from composer.loggers import CSVLogger, FileLogger, JSONLinesLogger
from tests.common import Regression, regression_data, trainer_of
from tests.loggers.files import Uploads, in_own_folder, resumed, run
from tests.loggers.loop import Loop

CASE = {"make": in_own_folder(lambda folder: JSONLinesLogger(f"{folder}/log.jsonl"))}


def lines_of(path, record_type: str | None = None) -> list[dict]:
    def refuse(constant: str):
        raise AssertionError(f"{constant} is not JSON")

    lines = [json.loads(line, parse_constant=refuse) for line in path.read_text().splitlines()]
    if record_type is None:  # what was logged
        return [line for line in lines if line["kind"] not in ("environment", "model", "event")]
    return [line for line in lines if record_type == line["kind"]]


def test_everything_in_its_order(tmp_path) -> None:
    loop = Loop([JSONLinesLogger(f"{tmp_path}/log.jsonl")]).init()
    logger = loop.logger
    logger.log_hyperparameters({"lr": 0.1, "model": {"depth": 2}, "dtype": torch.float32})
    logger.log_metrics({"nan": torch.tensor(float("nan")), "matrix": torch.eye(2), "word": "ü"}, step=3)
    logger.log_table(["a", "b"], [[1, torch.tensor(2)], [None, float("inf")]], name="T")
    logger.log_traces({"trace": 1})
    loop.close()
    assert lines_of(tmp_path / "log.jsonl") == [
        {"kind": "hyperparameters", "values": {"lr": 0.1, "model": {"depth": 2}, "dtype": "torch.float32"}},
        {
            "kind": "metrics",
            "step": 3,
            "epoch": 0,
            "sample": 0,
            "token": 0,
            "seconds": 0.0,
            "values": {"nan": "NaN", "matrix": [[1.0, 0.0], [0.0, 1.0]], "word": "ü"},
        },
        {"kind": "table", "step": 0, "name": "T", "columns": ["a", "b"], "rows": [[1, 2], [None, "Infinity"]]},
        {"kind": "traces", "step": 0, "values": {"trace": 1}},
    ]


def test_metrics_with_the_time_of_logging(tmp_path) -> None:
    run(JSONLinesLogger(f"{tmp_path}/log.jsonl")).close()
    lines = lines_of(tmp_path / "log.jsonl", "metrics")
    train = [line for line in lines if "loss/train/total" in line["values"]]
    assert [line["step"] for line in train] == list(range(8))
    assert [line["sample"] for line in train] == [8 * step for step in range(8)]
    assert [line["epoch"] for line in train] == [0] * 4 + [1] * 4
    assert [line["values"]["loss/train/total"] for line in train] == pytest.approx([1 / (k + 1) for k in range(8)])
    assert [line["step"] for line in lines if "metrics/eval/Accuracy" in line["values"]] == [4, 8]


def test_without_a_run(tmp_path) -> None:
    logger = JSONLinesLogger(f"{tmp_path}/log.jsonl")
    logger.__receive__({"x": 1}, 5, Timestamp(epoch=2, sample=9, token=7, total_wct=1.5))
    logger.log_metrics({"x": 2})
    logger.log_traces({"trace": 1})
    state = State(torch.nn.Linear(1, 1))
    assert logger.state_dict() == {}
    logger.close(state, Logger(state))
    first, second, third = lines_of(tmp_path / "log.jsonl")
    assert (first["step"], first["epoch"], first["sample"], first["token"], first["seconds"]) == (5, 2, 9, 7, 1.5)
    assert second["step"] == 0
    assert third["step"] is None


def test_lines_logged_outside_of_loops_are_written_immediately(tmp_path) -> None:
    path = tmp_path / "log.jsonl"
    loop = Loop([JSONLinesLogger(str(path))]).init()
    loop.logger.log_metrics({"early": 1})
    assert not path.exists()  # a checkpoint may tell that there is a file to go on with
    loop.fire("fit_start")
    loop.logger.log_metrics({"late": 2})
    assert [line["values"] for line in lines_of(path)] == [{"early": 1}, {"late": 2}]
    loop.close()


def test_nothing_is_read_between_intervals(tmp_path) -> None:
    path = tmp_path / "log.jsonl"
    logger = JSONLinesLogger(str(path), flush_interval=3)
    loop = Loop([logger], "100ba", length=100).init()
    loop.fire("fit_start")
    loop.logger.deferred = True
    lengths = []
    for _ in range(7):
        loop.batch()
        lengths.append(len(lines_of(path)) if path.exists() else 0)
    assert lengths == [0, 0, 3, 3, 3, 6, 6]
    loop.close()
    assert len(lines_of(path)) == 7


@pytest.mark.parametrize("overwrite", [False, True])
def test_a_file_of_an_earlier_run(tmp_path, overwrite: bool) -> None:
    for _ in range(3):
        run(JSONLinesLogger(f"{tmp_path}/log.jsonl", overwrite=overwrite), max_duration="4ba").close()
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names == (["log.jsonl"] if overwrite else ["log.1.jsonl", "log.2.jsonl", "log.jsonl"])
    assert {len(lines_of(path)) for path in tmp_path.iterdir()} == {5}


@pytest.mark.parametrize(("stop", "crash"), [(2, 2), (2, 3), (3, 7), (4, 4), (4, 6), (5, 8)])
def test_a_resumed_run_has_the_file_of_an_uninterrupted_one(tmp_path, stop: int, crash: int) -> None:
    run(JSONLinesLogger(f"{tmp_path}/straight.jsonl"), max_duration="8ba").close()
    resumed(lambda: JSONLinesLogger(f"{tmp_path}/torn.jsonl"), stop, crash)
    assert (tmp_path / "torn.jsonl").read_text() == (tmp_path / "straight.jsonl").read_text()
    assert (tmp_path / "torn.1.jsonl").exists() is (crash > stop)


def test_an_incomplete_line_left_by_a_crash_is_removed(tmp_path) -> None:
    path = tmp_path / "log.jsonl"
    logger = JSONLinesLogger(str(path))
    loop = run(logger, max_duration="2ba")
    saved = logger.state_dict()
    with path.open("a") as file:
        file.write('{"kind": "metr')
    other = JSONLinesLogger(str(path))
    other.load_state_dict(saved)
    run(other, max_duration="1ba").close()
    assert len(lines_of(path)) == 3
    loop.engine._finalizer.detach()


@pytest.mark.parametrize("tail", [b'{"kind": "metr', b"\0" * 100])
def test_a_line_torn_by_a_crash_of_the_host_is_removed(tmp_path, tail: bytes) -> None:
    path = tmp_path / "log.jsonl"
    logger = JSONLinesLogger(str(path))
    loop = run(logger, max_duration="4ba")
    saved = logger.state_dict()
    content = path.read_bytes()
    path.write_bytes(content[: content.rindex(b"\n", 0, -200) + 1] + tail)
    other = JSONLinesLogger(str(path))
    other.load_state_dict(saved)
    run(other, max_duration="1ba").close()
    assert History.read(path).remarks == []
    assert path.read_bytes().count(b"\0") == 0
    loop.engine._finalizer.detach()


def test_the_file_is_uploaded(tmp_path) -> None:
    uploads = Uploads()
    run(JSONLinesLogger(f"{tmp_path}/log.jsonl", "{run_name}/log.jsonl"), uploads).close()
    assert uploads.texts == {"test/log.jsonl": (tmp_path / "log.jsonl").read_text()}


def test_only_rank_0_writes_unless_the_name_has_the_rank(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(dist, "get_global_rank", lambda: 1)
    run(JSONLinesLogger(f"{tmp_path}/log.jsonl")).close()
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "log.jsonl").write_text("of the first process")
    run(JSONLinesLogger(f"{tmp_path}/log.jsonl")).close()
    assert [path.name for path in tmp_path.iterdir()] == ["log.jsonl"]
    (tmp_path / "log.jsonl").unlink()
    run(JSONLinesLogger(f"{tmp_path}/log-{{rank}}.jsonl")).close()
    assert [path.name for path in tmp_path.iterdir()] == ["log-1.jsonl"]


def test_in_a_real_run(tmp_path) -> None:
    logger = JSONLinesLogger(f"{tmp_path}/{{run_name}}.jsonl")
    with trainer_of(
        Regression(metrics=True), max_duration="2ep", loggers=logger, eval_dataloader=regression_data(1), run_name="r"
    ) as trainer:
        trainer.fit()
        assert logger.filename == f"{tmp_path}/r.jsonl"
    lines = lines_of(tmp_path / "r.jsonl")
    (parameters,) = [line["values"] for line in lines if line["kind"] == "hyperparameters"]
    assert parameters["rank_zero_seed"] == trainer.state.rank_zero_seed
    assert [line["step"] for line in lines if "loss/train/total" in line["values"]] == list(range(8))
    seconds = [line["seconds"] for line in lines if line["kind"] == "metrics"]
    assert seconds == sorted(seconds)


def test_bad_arguments() -> None:
    with pytest.raises(ValueError, match=r"filename='\{run_nam\}' has the unknown placeholder"):
        JSONLinesLogger("{run_nam}")
    with pytest.raises(TypeError, match="flush_interval must be an integer"):
        JSONLinesLogger("a", flush_interval="1ep")  # type: ignore[arg-type]


def test_a_failure_leaves_no_incomplete_line(tmp_path) -> None:
    path = tmp_path / "log.jsonl"
    loop = Loop([JSONLinesLogger(str(path))]).init()
    loop.fire("fit_start")
    loop.logger.log_metrics({"a": 1})
    with path.open("a") as file:
        file.write('{"kind": "metr')
    loop.logger.log_metrics({"b": 2})
    loop.close()
    assert [line["values"] for line in lines_of(path)] == [{"a": 1}, {"b": 2}]


def test_events_after_a_checkpoint_stay_when_the_run_is_resumed(tmp_path) -> None:
    path = tmp_path / "log.jsonl"
    logger = JSONLinesLogger(str(path))
    loop = run(logger, max_duration="2ba")
    saved = logger.state_dict()
    loop.logger.log_event("checkpoint", "saved ep1.pt")
    loop.logger.log_event("interruption")
    loop.close()
    evaluation = '{"kind": "event", "event": "evaluation", "text": "eval"}\n'  # will be repeated
    for lost, copies in (("", []), (evaluation + '{"kind": "metrics", "step": 2}\n', ["log.1.jsonl"])):
        with path.open("a") as file:
            file.write(lost)
        other = JSONLinesLogger(str(path))
        other.load_state_dict(saved)
        Loop([other], "1ba").init().fit().close()
        assert [line["event"] for line in lines_of(path, "event")] == ["checkpoint", "interruption"]
        assert sorted(one.name for one in tmp_path.glob("log.*.jsonl")) == copies
        saved = {**saved, "bytes": path.stat().st_size}


def test_names_that_are_not_utf8_are_written(tmp_path) -> None:
    name = os.fsdecode(b"data/\xff")
    loggers = [JSONLinesLogger(f"{tmp_path}/log.jsonl"), CSVLogger(f"{tmp_path}/metrics.csv")]
    loop = Loop([*loggers, FileLogger(f"{tmp_path}/log.txt", capture_stdout=False, capture_stderr=False)]).init()
    loop.fire("fit_start")
    loop.logger.log_hyperparameters({"folder": name})
    loop.logger.log_metrics({"file": name, "loss": 1.0}, step=1)
    loop.logger.log_metrics({"loss": 0.5}, step=2)
    loop.close()
    history = History.read(tmp_path / "log.jsonl")
    assert (history.hyperparameters["folder"], history.texts["file"]) == (name, name)
    assert history["loss"].values.tolist() == History.read(tmp_path / "metrics.csv")["loss"].values.tolist() == [1, 0.5]
    assert r"data/\udcff" in (tmp_path / "log.txt").read_text(encoding="utf-8")
