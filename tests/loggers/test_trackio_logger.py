from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch
from PIL import Image

from composer._lazy import MissingConditionalImportError
from composer.loggers import TrackioLogger
from composer.warnings import ComposerWarning
from tests.common import Received, trainer_of
from tests.loggers.loop import Loop
from tests.loggers.trackers import as_rank, interrupt, marks, resume_with

pytestmark = marks("trackio")

QUIET = {"auto_log_gpu": False, "auto_log_cpu": False}


def make(**arguments) -> TrackioLogger:
    kwargs = {**QUIET, **arguments.pop("init_kwargs", {})}
    return TrackioLogger(init_kwargs=kwargs, **arguments)


CASE = {"make": make, "marks": pytestmark}


@pytest.fixture
def project(request: pytest.FixtureRequest) -> str:
    """A project per test, since the database is shared by the process."""
    return "".join(letter if letter.isalnum() else "-" for letter in request.node.name)


def finish(loop: Loop, logger: TrackioLogger):
    """Close, and return the contents of the database for the run."""
    from trackio.sqlite_storage import SQLiteStorage

    run = logger.run
    loop.close()
    assert logger.run is None
    config = SQLiteStorage.get_run_config(logger.project, run.name, run_id=run.id)
    return SQLiteStorage.get_logs(logger.project, run.name, run_id=run.id), config


def series(logs, name: str):
    return [(row["step"], row[name]) for row in logs if name in row]


def media(project: str, entry) -> Path:
    from trackio.utils import MEDIA_DIR

    return Path(MEDIA_DIR, entry["file_path"])


def test_everything_is_in_the_database(project) -> None:
    logger = make(project=project, name="night", group="g", init_kwargs={"config": {"given": 3}})
    loop = Loop([logger])
    loop.logger.log_metrics({"early": 1}, step=0)
    loop.logger.log_hyperparameters({"seed": 1, "model": {"depth": 2}, "kind": torch.float32})
    loop.init().fit()
    loop.logger.log_traces({"trace": 1})
    loop.logger.log_metrics({"word": "a", "none": None, "matrix": torch.eye(2), "yes": True})
    loop.logger.log_table(["a", "b"], [[1, "x"], [torch.tensor(2.5), None]], name="T", step=9)
    logs, config = finish(loop, logger)

    assert {key: value for key, value in config.items() if not key.startswith("_")} == {
        "given": 3,
        "seed": 1,
        "model": {"depth": 2},
        "kind": "torch.float32",
    }
    assert config["_Group"] == "g"
    assert series(logs, "loss/train/total") == [(k, pytest.approx(1 / (k + 1))) for k in range(8)]
    assert series(logs, "metrics/eval/Accuracy") == [(4, 0.5), (8, 0.5)]
    assert series(logs, "early") == [(0, 1)]
    assert series(logs, "trace") == [(8, 1)]
    assert series(logs, "yes") == [(8, 1)]
    assert all(series(logs, name) == [] for name in ("word", "none", "matrix"))
    ((step, table),) = series(logs, "T")
    assert step == 9
    assert table["_value"] == [{"a": 1, "b": "x"}, {"a": 2.5, "b": None}]


def test_images_with_masks(project) -> None:
    logger = make(project=project)
    loop = Loop([logger]).init()
    image = torch.zeros(2, 3, 4, 5)
    image[:, 0] = 1.0
    masks = {"truth": torch.ones(2, 4, 5).long()}
    loop.logger.log_images(image, "table", step=3, masks=masks)
    loop.logger.log_images(image, "single", step=4, masks=masks, use_table=False)
    loop.logger.log_images(torch.ones(4, 5), "grey", step=5, use_table=False)
    loop.fire("after_load")
    logs, _ = finish(loop, logger)

    ((_, table),) = series(logs, "table")
    assert [list(row) for row in table["_value"]] == [["image", "truth"]] * 2
    ((_, single),) = series(logs, "single/1")
    ((_, masked),) = series(logs, "single/1/truth")
    ((_, grey),) = series(logs, "grey/0")
    colors = []
    for entry in (table["_value"][0]["image"], single, masked, grey):
        with Image.open(media(project, entry)) as picture:
            assert picture.size == (5, 4)
            colors.append(picture.convert("RGB").getpixel((0, 0)))
    assert colors[0] == colors[1] == (255, 0, 0)
    assert colors[2] != (255, 0, 0)
    assert colors[3] == (255, 255, 255)


def test_the_configuration_is_frozen_by_the_first_values(project) -> None:
    logger = make(project=project)
    loop = Loop([logger]).init()
    loop.fire("after_load")
    loop.logger.log_hyperparameters({"lr": 1})
    loop.logger.log_metrics({"a": 1.0})
    with pytest.warns(ComposerWarning, match="not logged: late"):
        loop.logger.log_hyperparameters({"late": 2})
    _, config = finish(loop, logger)
    assert config["lr"] == 1
    assert "late" not in config


def test_resumes_the_run_of_the_checkpoint(project) -> None:
    first, second = make(project=project), make(project=project)
    loop = resume_with(first, second)
    loop.logger.log_metrics({"x": 1.0}, step=50)
    logs, _ = finish(loop, second)
    assert len(series(logs, "loss/train/total")) == 8
    assert series(logs, "x") == [(50, 1.0)]


def test_another_name_begins_another_run(project) -> None:
    loop = resume_with(make(project=project), second := make(project=project), run_name="other")
    loop.logger.log_metrics({"x": 1.0}, step=50)
    logs, _ = finish(loop, second)
    assert series(logs, "loss/train/total") == []


def test_the_last_value_is_there_after_an_exception(project) -> None:
    from trackio.sqlite_storage import SQLiteStorage

    logger = make(project=project)
    logger.flush_interval = 1
    interrupt(Loop([logger]).init(), ValueError())
    (run,) = SQLiteStorage.get_runs(project)
    assert [step for step, _ in series(SQLiteStorage.get_logs(project, run), "loss/train/total")] == [0, 1, 2]


def test_files_are_artifacts(project, tmp_path) -> None:
    logger = make(project=project, log_artifacts=True)
    assert logger.can_upload_files()
    loop = Loop([logger]).init()
    path = tmp_path / "local.pt"
    path.write_text("early")
    loop.logger.upload_file("{run_name}/ep1.pt", path)  # before the run begins
    path.unlink()
    loop.fit()
    path.write_text("later")
    loop.logger.upload_file("{run_name}/ep1.pt", path)
    (tmp_path / "folder" / "deep").mkdir(parents=True)
    for name in ("a", "deep/b"):
        (tmp_path / "folder" / name).write_text(name)
    loop.logger.upload_file("sharded", tmp_path / "folder")
    target = tmp_path / "there" / "model.pt"
    logger.download_file("test/ep1.pt", str(target))
    assert target.read_text() == "later"
    with pytest.raises(FileExistsError, match="pass overwrite=True"):
        logger.download_file("test/ep1.pt", str(target))
    logger.download_file("test/ep1.pt:v0", str(target), overwrite=True)
    assert target.read_text() == "early"
    logger.download_file("sharded", str(tmp_path / "again"))
    assert (tmp_path / "again" / "deep" / "b").read_text() == "deep/b"
    with pytest.raises(FileNotFoundError, match="The artifact 'missing' does not exist"):
        logger.download_file("missing", str(tmp_path / "x"))
    finish(loop, logger)
    with pytest.raises(RuntimeError, match="the run of TrackioLogger has not begun"):
        logger.download_file("test/ep1.pt", str(tmp_path / "x"))
    assert logger._staging._folder is None


def test_each_rank_may_have_a_run(project, monkeypatch) -> None:
    as_rank(monkeypatch, 1)
    logger = make(project=project, rank_zero_only=False)
    loop = Loop([logger]).init()
    loop.fire("after_load")
    assert logger.run.name == "test-rank1"
    finish(loop, logger)
    other = make(project=project)
    loop = Loop([other])
    loop.logger.log_hyperparameters({"lr": 1})
    loop.init().fit()
    assert other.run is None
    loop.close()


def test_the_axis_is_that_of_the_trainer(project) -> None:
    logger, received = make(project=project), Received()
    trainer = trainer_of(loggers=[logger, received], max_duration="3ep", run_name="axis")
    trainer.fit()
    logs, config = finish(trainer, logger)
    assert series(logs, "loss/train/total") == received.series("loss/train/total")
    assert config["rank_zero_seed"] == trainer.state.rank_zero_seed


def test_a_trackio_error_stops_the_setup() -> None:
    with pytest.raises(ValueError, match="resume must be one of"):
        trainer_of(loggers=make(project="refused", init_kwargs={"resume": "perhaps"}))


def test_missing_package(monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "trackio", None)
    with pytest.raises(MissingConditionalImportError, match=r"pip install 'composer-torch\[trackio\]'"):
        TrackioLogger()
