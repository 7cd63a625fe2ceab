"""A trial writes nothing outside its folder, whatever the program passes to its trainers."""

from __future__ import annotations

import inspect
import os
from pathlib import Path

import pytest

from composer import Trainer, callbacks, loggers
from composer.core import Callback, LoggerDestination
from composer.loggers import InMemoryLogger
from composer.trials import ForkServer
from composer.trials.fork_server import can_fork
from composer.trials.isolation import environment, isolated
from tests.trials.programs import run, script

WRITES = """
from composer.callbacks import CheckpointSaver, ExportForInferenceCallback, SpikeRecorder
from composer.loggers import CSVLogger, FileLogger, InMemoryLogger, TensorboardLogger
from composer.profiler import JSONTraceHandler, Profiler, cyclic_schedule
os.chdir({here!r})
class Own(Trainer):
    def __init__(self, **arguments):
        super().__init__(**arguments, autoresume=True, save_overwrite=True)

class Saves(Callback):
    def batch_end(self, state, logger):
        one.save_checkpoint("inside.pt")

def make(cls, **arguments):
    return cls(
        model=ComposerClassifier(torch.nn.Linear(4, 2), num_classes=2), train_dataloader=loader(), max_duration="2ba",
        run_name="best", save_folder="saved", save_interval="1ba", save_num_checkpoints_to_keep=2, log_to_console=True,
        callbacks=[CheckpointSaver("other", save_interval="1ba"), CSVLogger(), SpikeRecorder(), Saves()],
        loggers=["file", "csv", FileLogger("log.txt"), InMemoryLogger(), TensorboardLogger("board")], **arguments)

one = make(Own)
one.fit(duration="1ba")
one.save_checkpoint("stage.pt")
one.save_checkpoint_to_save_folder()
one.export_for_inference("torchscript", "model.pt")
print("stages", one.state.run_name)
two = make(Trainer)
two.fit(train_dataloader=loader(), duration="2ba")
"""


@pytest.mark.skipif(not can_fork(), reason="forks processes")
def test_nothing_is_written_outside(tmp_path: Path, server: ForkServer) -> None:
    here = tmp_path / "here"
    here.mkdir()
    target = script(tmp_path / "program", WRITES.format(here=str(here)))
    record = run(tmp_path, type(target)("script", target.name, fit=2), server)
    assert record.is_completed, record.details
    assert list(here.rglob("*")) == []
    assert "stages trial-one" in (record.path / "log.txt").read_text()
    assert [path.name for path in (tmp_path / "program").iterdir()] == ["train.py"]


TRACKERS = """
os.chdir({here!r})
import wandb, mlflow
assert wandb.init(project="theirs").disabled
mlflow.set_experiment("theirs")
with mlflow.start_run():
    mlflow.log_metric("loss", 1.0)
trainer().fit()
"""


@pytest.mark.skipif(not can_fork(), reason="forks processes")
def test_trackers_that_the_script_starts_itself_record_nothing(tmp_path: Path, server: ForkServer) -> None:
    pytest.importorskip("wandb")
    pytest.importorskip("mlflow")
    here = tmp_path / "here"
    here.mkdir()
    record = run(tmp_path, script(tmp_path, TRACKERS.format(here=str(here))), server)
    assert record.is_completed, record.details
    assert list(here.rglob("*")) == []
    assert (record.path / "trackers" / "mlflow").is_dir()


def test_comet_reads_the_variables_of_trials(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    parameters = pytest.importorskip("comet_ml.comet_start.init_parameters")
    for name, value in environment("one", tmp_path).items():
        if name.startswith("COMET_"):
            monkeypatch.setenv(name, value)
    found = parameters.InitParameters()
    found.validate()
    assert found.offline


def test_the_run_is_not_inherited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RUN_NAME", "RANK", "MASTER_PORT", "TORCHELASTIC_RUN_ID", "MLFLOW_RUN_ID"):
        monkeypatch.setenv(name, "1")
    monkeypatch.setenv("THEIRS", "1")
    given = environment("one", tmp_path)
    assert given["THEIRS"] == "1"
    assert not {"RUN_NAME", "RANK", "MASTER_PORT", "TORCHELASTIC_RUN_ID", "MLFLOW_RUN_ID"} & set(given)
    assert {name: os.environ[name] for name in ("PATH",)} == {"PATH": given["PATH"]}


def test_arguments_that_are_replaced_exist() -> None:
    known = inspect.signature(Trainer.__init__).parameters
    assert set(isolated({}, "one")) <= set(known)


def test_callbacks_with_a_place_to_write_say_so() -> None:
    """Each callback that has an argument for a path, or is a logger, is left out of trials."""
    words = ("filename", "folder", "directory", "save_path", "path", "dir")
    found = []
    for package in (callbacks, loggers):
        for name in set(package.__all__) - {"LMEvalHarness", "LoadCheckpoint"}:  # which read from their paths
            cls = getattr(package, name)
            if not (inspect.isclass(cls) and issubclass(cls, Callback)):
                continue
            names = inspect.signature(cls.__init__).parameters
            writes = issubclass(cls, LoggerDestination) or any(
                word == one or one.endswith(f"_{word}") for one in names for word in words
            )
            if writes and not cls.writes_output:
                found.append(name)
    assert not found


def test_what_is_logged_in_memory_stays_readable() -> None:
    logger = InMemoryLogger()
    assert isolated({"loggers": [logger, "csv"]}, "one")["loggers"] == [logger]
    assert isolated({"loggers": "csv"}, "one")["loggers"] is None
