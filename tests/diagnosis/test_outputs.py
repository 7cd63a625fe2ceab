"""The outputs of a program are measured, and write into the folder of the trial."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from composer.callbacks import CheckpointSaver, OOMObserver
from composer.core.logger import LoggerDestination
from composer.diagnosis.outputs import restore_outputs
from composer.loggers import CSVLogger, FileLogger, InMemoryLogger
from composer.trials.isolation import isolated


class Own(LoggerDestination):
    pass


def restored(folder: Path, changed: Any = (), **given: Any) -> tuple[dict[str, Any], list[str]]:
    arguments = {"callbacks": None, "progress_bar": True, "log_to_console": False, "save_folder": None, **given}
    return restore_outputs(isolated(arguments, "one"), arguments, folder, changed)


def test_files_are_written_into_the_folder(tmp_path: Path) -> None:
    table, text, own = CSVLogger("mine/metrics.csv"), FileLogger("mine/log.txt"), Own()
    arguments, left_out = restored(tmp_path, loggers=[table, text, own, InMemoryLogger()], save_folder="mine/saved")
    assert table.filename.startswith(str(tmp_path))
    assert text._run_file.filename.startswith(str(tmp_path))
    assert own in arguments["loggers"]
    assert arguments["save_folder"].startswith(str(tmp_path))
    assert left_out == []


def test_savers_save_elsewhere_and_others_are_left_out(tmp_path: Path) -> None:
    arguments, left_out = restored(tmp_path, callbacks=[CheckpointSaver("mine", save_interval="2ba"), OOMObserver()])
    (saver,) = arguments["callbacks"]
    assert saver.folder.startswith(str(tmp_path))
    assert left_out == ["OOMObserver"]


def test_what_a_trial_changes_is_not_restored(tmp_path: Path) -> None:
    assert restored(tmp_path)[0]["progress_bar"] is True
    assert restored(tmp_path, changed=("progress_bar",))[0]["progress_bar"] is False
