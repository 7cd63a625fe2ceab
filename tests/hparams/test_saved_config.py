"""The configuration beside the run: in the folder of the checkpoints, at the loggers, and beside an earlier one."""

from __future__ import annotations

from pathlib import Path

import pytest

from composer.hparams import trainer_from_config
from composer.hparams._yaml import load
from composer.hparams.saved_config import save
from composer.loggers import InMemoryLogger, LoggerDestination
from composer.storage.folder import Folder
from composer.warnings import ComposerWarning
from tests.hparams.configured import config


class Files(LoggerDestination):
    """Keeps files and hyperparameters."""

    def __init__(self) -> None:
        self.files: dict[str, str] = {}

    def can_upload_files(self) -> bool:
        return True

    def upload_file(self, state, remote_file_name, file_path, *, overwrite):
        self.files[remote_file_name] = Path(file_path).read_text()


def test_it_is_saved_with_the_checkpoints_and_logged(tmp_path: Path) -> None:
    log = InMemoryLogger()
    folder = str(tmp_path / "{run_name}")
    trainer_from_config(config(save_folder=folder, run_name="night", algorithms="EMA"), loggers=log)
    saved = load((tmp_path / "night" / "config.yaml").read_text())
    assert saved["algorithms"]["class_path"] == "composer.algorithms.EMA"
    assert saved["algorithms"]["init_args"]["half_life"] == "1000ba"
    assert saved["save_folder"] == folder
    assert log.hyperparameters["algorithms"] == saved["algorithms"]
    assert {name: log.hyperparameters[name] for name in saved} == saved


def test_a_saved_file_is_a_configuration(tmp_path: Path) -> None:
    trainer_from_config(config(save_folder=str(tmp_path), seed=3))
    trainer = trainer_from_config(tmp_path / "config.yaml")
    assert trainer.state.seed == 3
    assert [file.name for file in tmp_path.iterdir()] == ["config.yaml"]  # it differs in nothing


def test_where_loggers_keep_files_they_get_it() -> None:
    files = Files()
    trainer_from_config(config(run_name="night"), loggers=files)
    ((name, text),) = files.files.items()
    assert name == "night/config.yaml"
    assert load(text)["max_duration"] == "2ba"


def test_without_a_place_it_is_only_logged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    trainer_from_config(config())
    assert not list(tmp_path.iterdir())


def test_a_resumed_run_that_differs_warns_and_both_are_kept(tmp_path: Path) -> None:
    arguments = {"save_folder": str(tmp_path), "autoresume": True, "run_name": "night"}
    trainer_from_config(config(**arguments)).fit()
    with pytest.warns(ComposerWarning, match="differs from config.yaml") as warned:
        resumed = trainer_from_config(
            config(**arguments, optimizers={"SGD": {"lr": 0.2}}) | {"max_duration": "4ba", "seed": 1}
        )
    (message,) = [str(warning.message) for warning in warned]
    for part in (
        "max_duration was '2ba' and is '4ba'",
        "optimizers.init_args.lr was 0.1 and is 0.2",
        "seed was not given and is 1",
        "config-2.yaml",
    ):
        assert part in message
    resumed.fit()
    assert int(resumed.state.timestamp.batch) == 4
    lengths = [load((tmp_path / name).read_text())["max_duration"] for name in ("config.yaml", "config-2.yaml")]
    assert lengths == ["2ba", "4ba"]
    with pytest.warns(ComposerWarning, match=r"config-2\.yaml in .*config-3\.yaml"):
        trainer_from_config(config(**arguments))


def test_folders_elsewhere() -> None:
    uri = "memory://configurations/night"
    save({"seed": 1}, uri)
    save({"seed": 1}, uri)
    with pytest.warns(ComposerWarning, match="seed was 1 and is 2"):
        save({"seed": 2}, uri)
    assert Folder(uri).names("config") == ["config-2.yaml", "config.yaml"]
    assert Folder(uri).read_text("config-2.yaml") == "seed: 2\n"
    Folder(uri).remove_all()


def test_only_the_first_process_writes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("composer.hparams.saved_config.dist.get_global_rank", lambda: 1)
    trainer_from_config(config(save_folder=str(tmp_path)))
    assert not (tmp_path / "config.yaml").exists()
