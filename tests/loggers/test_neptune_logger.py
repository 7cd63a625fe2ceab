"""NeptuneLogger against a fake package, whose interface for reading and writing attributes is small."""

from __future__ import annotations

import json
import shutil
import sys
import types
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
import torch

from composer._lazy import MissingConditionalImportError
from composer.loggers import NeptuneLogger
from tests.common import Received, trainer_of
from tests.loggers.loop import Loop
from tests.loggers.trackers import as_rank, interrupt, resume_with


class File:
    def __init__(self, content, extension: str) -> None:
        self.content, self.extension = content, extension

    @classmethod
    def from_content(cls, content, extension):
        return cls(content, extension)

    @classmethod
    def as_image(cls, picture):
        return cls(np.asarray(picture), "png")


class Handler:
    """A path in a run."""

    def __init__(self, run: Run, path: str) -> None:
        self.run, self.path = run, path

    def __getitem__(self, name: str) -> Handler:
        return Handler(self.run, f"{self.path}/{name}")

    def __setitem__(self, name: str, value) -> None:
        if not isinstance(value, (bool, int, float, str)):
            raise TypeError(f"unsupported: {value!r}")
        self.run.fields[f"{self.path}/{name}"] = value

    def append(self, value, step=None) -> None:
        series = self.run.fields.setdefault(self.path, [])
        if step is not None and series and step <= series[-1][0]:
            raise ValueError("steps must increase")
        series.append((step, value))

    def upload(self, file) -> None:
        self.run.fields[self.path] = file if isinstance(file, File) else Path(file).read_bytes()

    def download(self, destination: str, progress_bar=None) -> None:
        Path(destination).write_bytes(self.run.fields[self.path])


class Run:
    kept: dict[str, dict] = {}

    def __init__(self, **arguments) -> None:
        self.arguments = arguments
        self.fields = self.kept.setdefault(arguments["custom_run_id"], {}) if "custom_run_id" in arguments else {}
        self.stopped = None

    def __getitem__(self, path: str) -> Handler:
        return Handler(self, path)

    def __setitem__(self, path: str, value) -> None:
        self.fields[path] = value

    def exists(self, path: str) -> bool:
        return path in self.fields

    def sync(self) -> None:
        pass

    def stop(self, seconds) -> None:
        self.stopped = seconds


def make(**arguments) -> NeptuneLogger:
    neptune, types_module = types.ModuleType("neptune"), types.ModuleType("neptune.types")
    neptune.init_run, neptune.types, types_module.File = Run, types_module, File
    with mock.patch.dict(sys.modules, {"neptune": neptune, "neptune.types": types_module}):
        return NeptuneLogger(**arguments)


CASE = {"make": make}


def test_everything_is_in_its_namespace(tmp_path) -> None:
    logger = make(project="team/vision", mode="debug", base_namespace="run", tags=["a"])
    loop = Loop([logger])
    loop.logger.log_hyperparameters({"seed": 1, "model": {"depth": 2}, "layers": [1, 2], "none": None})
    loop.init().fit()
    run = logger.neptune_run
    assert run.arguments == {
        "project": "team/vision",
        "mode": "debug",
        "name": "test",
        "tags": ["a"],
        "custom_run_id": logger.state_dict()["id"],
    }
    loop.logger.log_traces({"trace": 1})
    loop.logger.log_traces({"trace": 2})
    loop.logger.log_metrics({"word": "a", "none": None})
    loop.logger.log_table(["a", "b"], [[1, "x"], [torch.tensor(2.5), None]], name="T", step=7)
    image = torch.zeros(1, 3, 4, 5)
    image[0, 0] = 1.0
    loop.logger.log_images(image, "seen", step=3, masks={"truth": torch.ones(1, 4, 5).long()})
    logger.base_handler["own"] = "value"
    loop.close()
    assert run.stopped == logger.close_timeout
    assert logger.neptune_run is None
    assert logger.base_handler is None

    fields = run.fields
    assert fields["run/metrics/loss/train/total"] == [(k, pytest.approx(1 / (k + 1))) for k in range(8)]
    assert fields["run/metrics/metrics/eval/Accuracy"] == [(4, 0.5), (8, 0.5)]
    assert fields["run/traces/trace"] == [(None, 1), (None, 2)]
    found = {name.rpartition("hyperparameters/")[2]: value for name, value in fields.items() if "hyperp" in name}
    assert found == {"seed": 1, "model/depth": 2, "layers": "[1, 2]", "none": "null"}
    table = fields["run/tables/T_7"]
    assert table.extension == "json"
    assert json.loads(table.content) == {"columns": ["a", "b"], "data": [[1, "x"], [2.5, None]]}
    ((step, picture),) = fields["run/images/seen/0"]
    ((_, masked),) = fields["run/images/seen/0/truth"]
    assert (step, picture.content.shape, picture.content[0, 0].tolist()) == (3, (4, 5, 3), [255, 0, 0])
    assert masked.content[0, 0].tolist() != [255, 0, 0]
    assert fields["run/own"] == "value"
    assert "run/metrics/word" not in fields
    assert "sys/failed" not in fields


def test_steps_of_a_series_increase() -> None:
    logger = make()
    loop = Loop([logger]).init()
    loop.fire("after_load")
    for step in (1, 3, 2, 3, 4):
        loop.logger.log_metrics({"a": float(step)}, step=step)
    assert logger.neptune_run.fields["training/metrics/a"] == [(1, 1.0), (3, 3.0), (4, 4.0)]
    loop.close()


def test_resumes_the_run_of_the_checkpoint() -> None:
    first, second = make(), make()
    loop = resume_with(first, second)
    loop.logger.log_metrics({"loss/train/total": 9.0}, step=3)  # the run has this step already
    loop.logger.log_metrics({"loss/train/total": 9.0}, step=8)
    series = second.neptune_run.fields["training/metrics/loss/train/total"]
    assert [step for step, _ in series] == [*range(8), 8]
    loop.close()


def test_another_name_or_a_custom_id_begins_another_run() -> None:
    loop = resume_with(first := make(), second := make(), run_name="other")
    assert first._id != second._id
    assert second.neptune_run.fields == {}
    loop.close()
    loop = resume_with(first := make(project="team/a"), second := make(project="team/b"))
    assert first._id != second._id
    loop.close()
    loop = resume_with(make(), second := make(custom_run_id="mine"))
    assert second.neptune_run.arguments["custom_run_id"] == "mine"
    loop.close()
    loop = resume_with(make(), second := make(with_id="RUN-1"))
    assert "custom_run_id" not in second.neptune_run.arguments
    loop.close()


def test_an_exception_marks_the_run_as_failed() -> None:
    logger = make()
    loop = Loop([logger]).init()
    loop.fire("after_load")
    run = logger.neptune_run
    interrupt(loop, ValueError())
    assert run.fields["sys/failed"] is True


def test_files(tmp_path) -> None:
    logger = make(upload_checkpoints=True)
    assert logger.can_upload_files()
    loop = Loop([logger]).init()
    path = tmp_path / "ep1.pt"
    path.write_text("weights")
    loop.logger.upload_file("{run_name}/ep1.pt", path)  # before the run begins
    path.unlink()
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "shard").write_text("x")
    loop.fit()
    loop.logger.upload_file("sharded", tmp_path / "folder")
    shutil.rmtree(tmp_path / "folder")
    fields = logger.neptune_run.fields
    assert fields["training/checkpoints/test/ep1.pt"] == b"weights"
    assert fields["training/checkpoints/sharded/shard"] == b"x"
    target = tmp_path / "deep" / "model.pt"
    logger.download_file("test/ep1.pt", str(target))
    assert target.read_text() == "weights"
    with pytest.raises(FileExistsError, match="pass overwrite=True"):
        logger.download_file("test/ep1.pt", str(target))
    with pytest.raises(FileNotFoundError, match="has no file 'training/checkpoints/missing'"):
        logger.download_file("missing", str(tmp_path / "x"))
    loop.close()
    with pytest.raises(RuntimeError, match="NeptuneLogger has no run"):
        logger.download_file("test/ep1.pt", str(tmp_path / "x"))


def test_files_are_stored_only_if_enabled(tmp_path) -> None:
    logger = make()
    assert not logger.can_upload_files()
    loop = Loop([logger]).init().fit()
    loop.logger.upload_file("x", tmp_path / "missing")
    assert not any("checkpoints" in name for name in logger.neptune_run.fields)
    loop.close()


def test_each_rank_may_have_a_run(monkeypatch) -> None:
    as_rank(monkeypatch, 1)
    logger = make(rank_zero_only=False)
    loop = Loop([logger]).init().fit()
    assert logger.neptune_run.arguments["name"] == "test-rank1"
    loop.close()
    other = make()
    loop = Loop([other]).init().fit()
    assert other.neptune_run is None
    loop.close()


def test_the_axis_is_that_of_the_trainer() -> None:
    logger, received = make(), Received()
    trainer = trainer_of(loggers=[logger, received], max_duration="3ep", run_name="axis")
    fields = logger.neptune_run.fields
    trainer.fit()
    trainer.close()
    assert fields["training/metrics/loss/train/total"] == received.series("loss/train/total")
    assert fields["training/hyperparameters/rank_zero_seed"] == trainer.state.rank_zero_seed


def test_missing_package(monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "neptune", None)
    with pytest.raises(MissingConditionalImportError, match=r"pip install 'neptune>=1\.10,<2'"):
        NeptuneLogger()
