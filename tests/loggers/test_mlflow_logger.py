from __future__ import annotations

import contextlib
import json
import sys
import threading
import time
import types
from functools import partial
from pathlib import Path

import pytest
import torch
from PIL import Image

from composer._lazy import MissingConditionalImportError
from composer.loggers import MLFlowLogger
from composer.loggers._mlflow_run import clean_name
from composer.warnings import ComposerWarning
from tests.common import Received, trainer_of
from tests.loggers.loop import Loop
from tests.loggers.trackers import as_rank, interrupt, marks, resume_with

pytestmark = marks("mlflow", "The ``noload`` loader strategy is deprecated", r".*filesystem.*:FutureWarning")


def quick(**arguments) -> MLFlowLogger:
    return MLFlowLogger(**{"log_system_metrics": False, "logging_buffer_seconds": 0, **arguments})


CASE = {"make": quick, "marks": pytestmark}


@pytest.fixture
def make(tmp_path):
    return partial(quick, tracking_uri=(tmp_path / "runs").as_uri())


def finish(loop: Loop, logger: MLFlowLogger):
    """Close, and return the run and a client to read it."""
    loop.close()
    return logger._mlflow_client.get_run(logger.run_id), logger._mlflow_client


def history(client, run, name: str) -> list[tuple[int, float]]:
    return sorted((metric.step, metric.value) for metric in client.get_metric_history(run.info.run_id, name))


def test_attributes_that_scripts_read(tmp_path, make, monkeypatch) -> None:
    monkeypatch.setenv("DATABRICKS_HOST", "https://host")
    uri = (tmp_path / "models").as_uri()
    logger = make(model_registry_prefix="a.b", model_registry_uri=uri)
    assert (logger.model_registry_prefix, logger.model_registry_uri, logger.run_url) == ("a.b", uri, None)
    loop = Loop([logger]).init()
    assert logger._mlflow_client.get_run(logger.run_id).info.run_id == logger._run_id
    assert logger.run_url == f"https://host/ml/experiments/{logger.experiment_id}/runs/{logger.run_id}"
    loop.close()


def artifacts(client, run, folder: str | None = None) -> dict[str, Path]:
    found = {}
    for item in client.list_artifacts(run.info.run_id, folder):
        if item.is_dir:
            found.update(artifacts(client, run, item.path))
        else:
            found[item.path] = Path(client.download_artifacts(run.info.run_id, item.path))
    return found


@pytest.mark.parametrize("store", ["file://{}/runs", pytest.param("sqlite:///{}/runs.db", marks=pytest.mark.slow)])
def test_everything_can_be_read_back(tmp_path, store) -> None:
    logger = quick(
        tracking_uri=store.format(tmp_path),
        experiment_name="vision",
        run_name="night",
        tags={"team": "a"},
        run_group="g",
    )
    logger._mlflow_client.create_experiment("vision", artifact_location=(tmp_path / "artifacts").as_uri())
    loop = Loop([logger])
    loop.logger.log_hyperparameters({"seed": 1, "model": {"depth": 2}, "kind": torch.float32})
    loop.init().fit()
    loop.logger.log_traces({"trace": 1})
    loop.logger.log_metrics({"nan": float("nan"), "word": "a", "none": None, "yes": True, "a[0]": 1})
    loop.logger.log_table(["a", "b"], [[1, "x"], [torch.tensor(2.5), None]], name="T", step=7)
    image = torch.zeros(1, 3, 4, 5)
    image[0, 0] = 1.0
    loop.logger.log_images(image, "seen", step=3, masks={"truth": torch.ones(1, 4, 5).long()})
    run, client = finish(loop, logger)

    assert client.get_experiment(run.info.experiment_id).name == "vision"
    assert (run.info.run_name, run.info.status) == ("night", "FINISHED")
    assert {key: value for key, value in run.data.tags.items() if not key.startswith("mlflow.")} == {
        "run_name": "night",
        "team": "a",
        "run_group": "g",
    }
    assert run.data.params == {"seed": "1", "model/depth": "2", "kind": "torch.float32"}
    assert history(client, run, "loss/train/total") == [(k, pytest.approx(1 / (k + 1))) for k in range(8)]
    assert run.data.metrics["trace"] == 1
    assert run.data.metrics["a_0_"] == 1
    assert run.data.metrics["yes"] == 1
    assert {"word", "none"} & set(run.data.metrics) == set()
    files = artifacts(client, run)
    assert json.loads(files["T_7.json"].read_text()) == {"columns": ["a", "b"], "data": [[1, "x"], [2.5, None]]}
    pictures = {name: path for name, path in files.items() if name.endswith(".png")}
    assert len(pictures) == 2
    plain, masked = sorted(pictures, key=len)
    assert "truth" in masked
    with Image.open(pictures[plain]) as picture:
        assert (picture.size, picture.getpixel((0, 0))) == ((5, 4), (255, 0, 0))
    with Image.open(pictures[masked]) as picture:
        assert picture.getpixel((0, 0)) != (255, 0, 0)


def test_metrics_are_renamed_and_ignored(make) -> None:
    logger = make(rename_metrics={"loss/train/total": "loss"}, ignore_metrics=["time/*", "metrics/eval/Accurac?"])
    assert (logger.rename("loss/train/total"), logger.rename("lr")) == ("loss", "lr")
    run, client = finish(Loop([logger]).init().fit(), logger)
    assert set(run.data.metrics) == {"loss"}
    assert len(history(client, run, "loss")) == 8


def test_hyperparameters_are_ignored(make) -> None:
    logger = make(ignore_hyperparameters=["sec*", "model/d*"])
    loop = Loop([logger]).init()
    loop.logger.log_hyperparameters({"secret": {"key": 1}, "model": {"depth": 1, "width": 2}})
    loop.fit()
    run, _ = finish(loop, logger)
    assert run.data.params == {"model/width": "2"}


def test_many_and_long_hyperparameters(make) -> None:
    logger = make()
    loop = Loop([logger]).init()
    loop.logger.log_hyperparameters({f"p{k}": "x" * 7000 for k in range(230)})
    run, _ = finish(loop, logger)
    assert len(run.data.params) == 230
    assert {len(value) for value in run.data.params.values()} == {6000}


def test_a_changed_hyperparameter_keeps_its_first_value(make) -> None:
    logger = make()
    loop = Loop([logger]).init().fit()
    loop.logger.log_hyperparameters({"lr": 1, "seed": 2})
    with pytest.warns(ComposerWarning, match="keeps the first value of a parameter; these have changed: lr"):
        loop.logger.log_hyperparameters({"lr": 3, "seed": 2, "new": 4})
    run, _ = finish(loop, logger)
    assert run.data.params == {"lr": "1", "seed": "2", "new": "4"}


def test_unchanged_metrics_are_logged_now_and_then(make) -> None:
    logger = make(log_duplicated_metric_every_n_steps=10)
    loop = Loop([logger]).init()
    loop.fire("fit_start")
    for step in range(25):
        loop.logger.log_metrics({"constant": 1.0, "nan": float("nan"), "step": float(step >= 4)}, step=step)
    run, client = finish(loop, logger)
    assert [step for step, _ in history(client, run, "constant")] == [0, 10, 20]
    assert [step for step, _ in history(client, run, "nan")] == [0, 10, 20]
    assert history(client, run, "step") == [(0, 0.0), (4, 1.0), (14, 1.0), (24, 1.0)]


@pytest.mark.parametrize(
    ("error", "status"), [(ValueError(), "FAILED"), (KeyboardInterrupt(), "KILLED"), (None, "FINISHED")]
)
def test_status(make, error, status) -> None:
    logger = make()
    loop = Loop([logger]).init()
    assert logger._mlflow_client.get_run(logger.run_id).info.status == "RUNNING"
    if error is not None:
        interrupt(loop, error)
    run, _ = finish(loop, logger)
    assert run.info.status == status


def test_the_last_value_is_there_after_an_exception(make) -> None:
    logger = make(logging_buffer_seconds=600, flush_interval=1)
    loop = Loop([logger]).init()
    interrupt(loop, ValueError())
    run, client = finish(loop, logger)
    assert [step for step, _ in history(client, run, "loss/train/total")] == [0, 1, 2]


# --------------------------------------------------------------------------------------------------------- which run


def test_resumes_the_run_of_the_checkpoint(make) -> None:
    first, second = make(), make()
    loop = resume_with(first, second)
    loop.logger.log_metrics({"x": 1}, step=50)
    run, client = finish(loop, second)
    assert run.info.run_id == first.run_id
    assert len(history(client, run, "loss/train/total")) == 8
    assert run.data.metrics["x"] == 1


def test_begins_a_new_run_with_another_name_or_tracking_uri(make, tmp_path) -> None:
    first, second = make(), make()
    finish(resume_with(first, second, run_name="other"), second)
    elsewhere = quick(tracking_uri=(tmp_path / "elsewhere").as_uri())
    finish(resume_with(make(), elsewhere), elsewhere)
    assert len({first.run_id, second.run_id, elsewhere.run_id}) == 3


def test_resume_finds_the_newest_run_of_the_name(make) -> None:
    ids = []
    for _ in range(2):
        logger = make()
        finish(Loop([logger]).init().fit(), logger)
        ids.append(logger.run_id)
        time.sleep(0.002)  # the times of starting differ
    logger = make(resume=True)
    run, _ = finish(Loop([logger]).init().fit(), logger)
    assert run.info.run_id == ids[1]
    other = make(resume=True, run_name='with "quotes"')
    run, _ = finish(Loop([other]).init().fit(), other)
    assert run.info.run_id not in ids


def test_environment(make, monkeypatch) -> None:
    logger = make()
    monkeypatch.setenv("MLFLOW_EXPERIMENT_NAME", "from outside")
    run, client = finish(Loop([logger]).init().fit(), logger)
    assert client.get_experiment(run.info.experiment_id).name == "from outside"
    monkeypatch.setenv("MLFLOW_RUN_ID", run.info.run_id)
    again = make()
    finish(Loop([again]).init().fit(), again)
    assert again.run_id == run.info.run_id
    monkeypatch.delenv("MLFLOW_RUN_ID")
    monkeypatch.setenv("MLFLOW_EXPERIMENT_ID", client.create_experiment("by id"))
    third = make()
    run, _ = finish(Loop([third]).init().fit(), third)
    assert client.get_experiment(run.info.experiment_id).name == "by id"


def test_ids_are_available_before_a_checkpoint_is_loaded(make) -> None:
    logger = make()
    assert logger.run_id is None
    loop = Loop([logger]).init()
    run_id, experiment_id = logger.run_id, logger.experiment_id
    assert logger._mlflow_client.get_run(run_id).info.experiment_id == experiment_id
    loop.fire("after_load")
    assert logger.run_id == run_id
    finish(loop, logger)


def test_each_rank_may_have_a_run(make, monkeypatch) -> None:
    as_rank(monkeypatch, 1)
    logger = make(rank_zero_only=False)
    run, _ = finish(Loop([logger]).init().fit(), logger)
    assert run.info.run_name == "test-rank1"
    other = make()
    loop = Loop([other]).init().fit()
    assert other.run_id is None
    assert other.register_model("runs:/x", "m") is None
    loop.close()


def test_databricks_names_are_paths(monkeypatch) -> None:
    from composer.loggers._mlflow_run import find_experiment

    requested = []

    class Client:
        def get_experiment_by_name(self, name):
            requested.append(name)

        def create_experiment(self, name):
            return f"id of {name}"

    class Workspace:
        current_user = type("User", (), {"me": staticmethod(lambda: type("Me", (), {"user_name": "ann"}))})

    sdk = types.ModuleType("databricks.sdk")
    sdk.WorkspaceClient = Workspace
    monkeypatch.setitem(sys.modules, "databricks.sdk", sdk)
    assert find_experiment(Client(), "e", "databricks").split("/") == ["id of ", "Users", "ann", "e"]
    assert find_experiment(Client(), "/Shared/e", "databricks") == "id of /Shared/e"


# ------------------------------------------------------------------------------------------------------------- files


def test_files(make, tmp_path) -> None:
    logger = make(log_artifacts=True)
    assert logger.can_upload_files()
    loop = Loop([logger]).init()
    path = tmp_path / "local.pt"
    path.write_text("weights")
    loop.logger.upload_file("{run_name}/checkpoints/ep1.pt", path)  # before the run begins
    path.unlink()
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "shard").write_text("x")
    loop.fit()
    loop.logger.upload_file("sharded/ep1", folder)
    target = tmp_path / "deep" / "model.pt"
    logger.download_file("test/checkpoints/ep1.pt", str(target))
    assert target.read_text() == "weights"
    assert sorted(item.name for item in target.parent.iterdir()) == ["model.pt"]
    with pytest.raises(FileExistsError, match="pass overwrite=True"):
        logger.download_file("test/checkpoints/ep1.pt", str(target))
    with pytest.raises(FileNotFoundError, match="has no artifact 'missing'"):
        logger.download_file("missing", str(tmp_path / "x"))
    run, client = finish(loop, logger)
    assert set(artifacts(client, run)) == {"test/checkpoints/ep1.pt", "sharded/ep1/shard"}
    assert logger._staging._folder is None


def test_an_artifact_is_replaced_only_with_overwrite(make, tmp_path) -> None:
    logger = make(log_artifacts=True, synchronous=True)
    loop = Loop([logger]).init().fit()
    path = tmp_path / "a.txt"
    for text in ("old", "new"):
        path.write_text(text)
        loop.logger.upload_file("a.txt", path, overwrite=True)
    with pytest.raises(FileExistsError, match=r"has an artifact 'a\.txt' already"):
        loop.logger.upload_file("a.txt", path)
    run, client = finish(loop, logger)
    assert artifacts(client, run)["a.txt"].read_text() == "new"


def test_files_are_stored_only_if_enabled(make, tmp_path) -> None:
    logger = make()
    assert not logger.can_upload_files()
    loop = Loop([logger]).init().fit()
    loop.logger.upload_file("x", tmp_path / "missing")
    run, client = finish(loop, logger)
    assert artifacts(client, run) == {}


# ------------------------------------------------------------------------------------------------------------ others


def test_system_metrics(make, monkeypatch) -> None:
    pytest.importorskip("psutil")
    monkeypatch.setenv("MLFLOW_SYSTEM_METRICS_SAMPLING_INTERVAL", "0.05")
    threads = set(threading.enumerate())
    logger = make(log_system_metrics=True)
    loop = Loop([logger]).init().fit()
    end = time.monotonic() + 60
    while time.monotonic() < end:
        with contextlib.suppress(ValueError):  # a file to which mlflow has written nothing yet
            if any(name.startswith("system/") for name in logger._mlflow_client.get_run(logger.run_id).data.metrics):
                break
        time.sleep(0.05)
    run, _ = finish(loop, logger)
    assert "system/cpu_utilization_percentage" in run.data.metrics
    assert set(threading.enumerate()) <= threads


def test_the_axis_is_that_of_the_trainer(make) -> None:
    logger, received = make(log_duplicated_metric_every_n_steps=1), Received()
    trainer = trainer_of(loggers=[logger, received], max_duration="3ep", run_name="axis")
    trainer.fit()
    run, client = finish(trainer, logger)
    assert history(client, run, "loss/train/total") == received.series("loss/train/total")
    assert run.data.params["rank_zero_seed"] == str(trainer.state.rank_zero_seed)
    assert run.info.run_name == "axis"


def test_an_mlflow_error_stops_the_setup(make, monkeypatch) -> None:
    from mlflow.exceptions import MlflowException

    logger = make()
    monkeypatch.setattr(
        logger._mlflow_client, "create_run", lambda *a, **k: (_ for _ in ()).throw(MlflowException("no permission"))
    )
    with pytest.raises(MlflowException, match="no permission"):
        trainer_of(loggers=logger)


@pytest.mark.parametrize("module", ["mlflow", "psutil"])
def test_missing_packages(monkeypatch, module) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(MissingConditionalImportError, match=rf"'{module}'.*pip install 'composer-torch\[mlflow\]'"):
        MLFlowLogger()


@pytest.mark.parametrize(
    "wrong", [{"flush_interval": 0}, {"logging_buffer_seconds": -1}, {"log_duplicated_metric_every_n_steps": -1}]
)
def test_bad_numbers(wrong) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong))):
        quick(**wrong)


def test_names_that_mlflow_accepts() -> None:
    assert clean_name("metrics/eval/Accuracy_5-x.y: z") == "metrics/eval/Accuracy_5-x.y: z"
    assert clean_name("a[b]@c") == "a_b__c"
    assert len(clean_name("x" * 1000)) == 250
