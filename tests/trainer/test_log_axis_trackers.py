"""LogAxis for trackers: they store the same steps as all other destinations."""

from __future__ import annotations

import pytest

from composer.warnings import ComposerWarning
from tests.common import Received
from tests.loggers.conftest import _offline as _offline
from tests.loggers.test_cometml_logger import offline as comet
from tests.loggers.test_mlflow_logger import quick as mlflow
from tests.loggers.test_neptune_logger import make as neptune
from tests.loggers.test_trackio_logger import make as trackio
from tests.loggers.test_wandb_logger import offline as wandb
from tests.loggers.trackers import CometArchive, WandBFile, marks
from tests.trainer.test_log_axis import train

Series = dict[str, list[int]]


def in_wandb(folder, names) -> Series:
    (path,) = (folder / "wandb").glob("offline-run-*")
    rows = WandBFile(folder, path.name.rpartition("-")[2]).rows
    return {name: [step for step, row in sorted(rows.items()) if name in row] for name in names}


def in_mlflow(folder, names) -> Series:
    import mlflow

    client = mlflow.MlflowClient((folder / "runs").as_uri())
    (experiment,) = [item.experiment_id for item in client.search_experiments() if item.name != "Default"]
    (run,) = client.search_runs([experiment])
    histories = {name: client.get_metric_history(run.info.run_id, name) for name in names}
    return {name: [metric.step for metric in history] for name, history in histories.items()}


def in_comet(folder, names) -> Series:
    (path,) = folder.glob("*.zip")
    archive = CometArchive(folder, path.stem)
    return {name: [step for step, _ in archive.history(name)] for name in names}


def in_trackio(folder, names) -> Series:
    from trackio.sqlite_storage import SQLiteStorage

    (run,) = SQLiteStorage.get_runs("axis")
    rows = SQLiteStorage.get_logs("axis", run)
    return {name: [row["step"] for row in rows if name in row] for name in names}


STORES = {
    "WandBLogger": (wandb, in_wandb, marks("wandb")),
    "MLFlowLogger": (
        lambda folder: mlflow(tracking_uri=(folder / "runs").as_uri(), log_duplicated_metric_every_n_steps=1),
        in_mlflow,
        marks("mlflow"),
    ),
    "CometMLLogger": (comet, in_comet, marks("comet_ml", "`sentry_sdk.Hub` is deprecated")),
    "TrackioLogger": (lambda folder: trackio(project="axis"), in_trackio, marks("trackio")),
}


@pytest.mark.parametrize(
    ("make", "read"),
    [pytest.param(make, read, id=name, marks=marked) for name, (make, read, marked) in STORES.items()],
)
def test_LogAxis_what_a_tracker_stores_has_the_same_steps(tmp_path, make, read) -> None:
    logger, received = make(tmp_path), Received(3)
    logger.flush_interval = 3
    train(logger, received)
    names = {name for _, metrics in received.metrics for name in metrics}
    # One row for each step holds the newest value, where a metric is logged more than once in a step.
    wanted = {name: sorted({step for step, _ in received.series(name)}) for name in names}
    assert {name: sorted(set(steps)) for name, steps in read(tmp_path, names).items()} == wanted


def test_LogAxis_neptune() -> None:
    logger, received = neptune(), Received(3)
    logger.flush_interval = 3
    runs = []
    logger._end, end = lambda outcome: (runs.append(logger.neptune_run), end(outcome)), logger._end
    train(logger, received)
    fields = runs[0].fields
    for name in {name for _, metrics in received.metrics for name in metrics}:
        steps = [step for step, _ in fields[f"training/metrics/{name}"]]
        assert steps == sorted({step for step, _ in received.series(name)})


def test_LogAxis_a_failing_tracker_does_not_stop_training(tmp_path, monkeypatch) -> None:
    package = pytest.importorskip("wandb")

    def fail(*args, **kwargs):
        raise ConnectionError("tracker is down")

    monkeypatch.setattr(package.sdk.wandb_run.Run, "log", fail)
    received = Received()
    with pytest.warns(ComposerWarning, match="WandBLogger failed and may have lost log records; training continues"):
        train(wandb(tmp_path), received, extras=False)
    assert len(received.series("loss/train/total")) == 8
