"""Names of runs and files are used literally, or raise if they lead outside of a folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from composer import Trainer
from composer.callbacks import CheckpointSaver, MemorySnapshot, OOMObserver
from composer.core.name_placeholders import check_run_name
from composer.loggers import CSVLogger, FileLogger, RemoteUploaderDownloader, TensorboardLogger
from composer.profiler import JSONTraceHandler
from composer.storage import Folder
from tests.common import classifier, labeled_data

LITERAL = ["{epoch}", "{run_name}", "[0-9]*", "(.+)", "{{x}"]


def trainer(**more: Any) -> Trainer:
    model = classifier()
    given = {"model": model, "train_dataloader": labeled_data(2), "max_duration": "1ep", "progress_bar": False}
    return Trainer(**given | {"optimizers": torch.optim.SGD(model.parameters(), 0.1)} | more)


@pytest.mark.parametrize("uri", [False, True], ids=["folder", "uri"])
@pytest.mark.parametrize("run_name", LITERAL)
def test_a_run_of_any_name_is_resumed(run_name: str, uri: bool, tmp_path: Path, monkeypatch) -> None:
    """In a folder and with files that have the name of the run in them."""
    monkeypatch.chdir(tmp_path)
    folder = f"memory://names/{tmp_path.name}/{{run_name}}" if uri else "{run_name}"
    arguments = {
        "run_name": run_name,
        "save_folder": folder,
        "save_filename": "{run_name}-ep{epoch}-ba{batch}.pt",
        "save_latest_filename": "{run_name}-latest.pt",
        "save_interval": "1ba",
        "save_num_checkpoints_to_keep": 1,
        "autoresume": True,
        "loggers": [FileLogger(), CSVLogger(), TensorboardLogger("board")],
    }
    for duration in ("1ep", "2ep"):
        with trainer(**arguments, max_duration=duration) as run:
            assert run.state.timestamp.batch == (0 if duration == "1ep" else 2)
            run.fit()
    place = Folder(f"memory://names/{tmp_path.name}") if uri else Folder(f"file://{tmp_path}")
    found = [name for name in place.names() if name.endswith(".pt") and "latest" not in name]
    assert found == [f"{run_name}/{run_name}-ep1-ba4.pt"]
    assert (tmp_path / run_name / "logs-rank0.txt").exists()
    assert (tmp_path / run_name / "metrics.csv").exists()
    assert (tmp_path / "board" / run_name).is_dir()


@pytest.mark.parametrize("source", ["run_name", "COMPOSER_RUN_NAME", "RUN_NAME"])
@pytest.mark.parametrize("name", ["../x", "/x", "a/../../x", "x\0", "..\\x", "a/", "a:b", "é" * 128, "x/" + "y" * 256])
def test_run_names_with_path_traversal(source: str, name: str, monkeypatch) -> None:
    if "\0" in name and source != "run_name":
        pytest.skip("the system has no such variables")
    arguments = {"run_name": name} if source == "run_name" else {}
    if not arguments:
        monkeypatch.setenv(source, name)
    with pytest.raises(ValueError, match=rf"^{source}=.* Pass a name such as"):
        trainer(**arguments)


def test_invalid_run_name_errors() -> None:
    for name, told in {
        "a/": "ends in a slash",
        "a:b": "begins with a drive, 'a:'",
        "y" * 256: "has a component of 256 bytes; the limit is 255",
        "x\ud800": "contains characters that cannot be encoded in UTF-8",
    }.items():
        with pytest.raises(ValueError, match=rf"^run_name=.* {told}"):
            check_run_name("run_name", name)
    assert check_run_name("run_name", f"{'y' * 255}/{'y' * 255}")


@pytest.mark.parametrize("of_batch", ["{batch:>5}", "{batch:<5}", "{batch:*^7}", "{batch:6d}", "{batch:+}"])
def test_a_run_is_resumed_from_padded_names_without_the_link(of_batch: str, tmp_path: Path) -> None:
    arguments = {"run_name": "a", "save_folder": str(tmp_path), "save_filename": f"{of_batch}.pt", "autoresume": True}
    for duration in ("1ep", "2ep"):
        with trainer(**arguments, max_duration=duration) as run:
            assert run.state.timestamp.batch == (0 if duration == "1ep" else 2)
            run.fit()
        for link in tmp_path.glob("*latest*"):
            link.unlink()


@pytest.mark.parametrize(
    "name", ["../x{epoch}", "/x{epoch}", "a/../../x{epoch}", "x{epoch}\0", "..\\x{epoch}", "C:x{epoch}"]
)
@pytest.mark.parametrize(
    "make",
    [
        lambda name: trainer(save_folder="x", save_filename=name),
        lambda name: trainer(save_folder="x", save_latest_filename=name),
        lambda name: CheckpointSaver(filename=name),
        lambda name: CheckpointSaver(latest_filename=name),
        lambda name: JSONTraceHandler(filename=name),
        lambda name: JSONTraceHandler(merged_trace_filename=name.replace("{epoch}", "")),
        lambda name: MemorySnapshot(filename=name),
        lambda name: OOMObserver(filename=name),
    ],
    ids=range(8),
)
def test_file_names_with_path_traversal(make: Any, name: str, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match=r"Pass a name inside of it"):
        make(name)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", ["../x", "a/../../x", "memory://bucket/../x", "x\0"])
@pytest.mark.parametrize(
    "make",
    [
        lambda name: CheckpointSaver(remote_file_name=name),
        lambda name: CheckpointSaver(latest_remote_file_name=name),
        lambda name: FileLogger(remote_file_name=name),
        lambda name: CSVLogger(remote_file_name=name),
        lambda name: JSONTraceHandler(remote_file_name=name),
        lambda name: MemorySnapshot(remote_file_name=name),
        lambda name: trainer().logger.upload_file(name, "x"),
        lambda name: RemoteUploaderDownloader("memory://bucket/above").get_uri_for_file(name),
    ],
    ids=range(8),
)
def test_remote_names_with_path_traversal(make: Any, name: str) -> None:
    with pytest.raises(ValueError, match=r"remote_file_name=.* Pass a name inside of it"):
        make(name)


def test_save_folder_may_be_a_parent_folder(tmp_path: Path, monkeypatch) -> None:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    uploader = RemoteUploaderDownloader(f"memory://{tmp_path.name}/prefix")
    with trainer(save_folder="../runs/{run_name}", run_name="night", loggers=uploader) as run:
        run.fit()
    assert (tmp_path / "runs" / "night" / "ep1-ba2-rank0.pt").exists()
    assert "prefix/runs/night/ep1-ba2-rank0.pt" in uploader.remote_backend.list_objects("prefix")


def test_run_renamed_later(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    run = trainer(save_folder="here", save_filename="{run_name}-ep{epoch}.pt")
    run.state.run_name = "../other"
    with pytest.raises(ValueError, match="points outside of its folder"):
        run.fit()
