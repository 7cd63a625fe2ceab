"""Names of files may be given as paths wherever they may be given as text."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from composer import State
from composer.callbacks import CheckpointSaver, ExportForInferenceCallback, LoadCheckpoint, MemorySnapshot
from composer.checkpoint import load_checkpoint, save_checkpoint
from composer.checkpoint.save import get_save_filename
from composer.core import Logger
from composer.core.file_names import PartialFilePath, format_name_with_dist
from composer.core.name_placeholders import check_template, format_name
from composer.loggers import FileLogger
from composer.profiler import JSONTraceHandler
from composer.storage.downloads import get_file
from composer.storage.object_store import maybe_create_object_store_from_uri
from composer.storage.uris import parse_uri


def test_templates() -> None:
    assert format_name(Path("a/{run_name}.pt"), "night") == format_name_with_dist(Path("a/{run_name}.pt"), "night")
    assert check_template("folder", Path("a")) == "a"
    state = State(model=torch.nn.Linear(1, 1), run_name="night")
    assert PartialFilePath(Path("ep{epoch}.pt"), Path("{run_name}")).format(state) == "night/ep0.pt"
    with pytest.raises(TypeError, match="folder must be a string, but got 3"):
        check_template("folder", 3)  # pyright: ignore[reportArgumentType]


def test_checkpoints(tmp_path) -> None:
    state = State(model=torch.nn.Linear(1, 1))
    path = save_checkpoint(state, tmp_path / "ep{epoch}.pt")
    assert path == get_save_filename(state, tmp_path / "ep{epoch}.pt") == str(tmp_path / "ep0.pt")
    assert load_checkpoint(tmp_path / "ep0.pt", state, Logger(state)) is not None
    get_file(tmp_path / "ep0.pt", tmp_path / "copy.pt")
    assert (tmp_path / "copy.pt").is_file()
    assert parse_uri(tmp_path / "ep0.pt") == ("", "", path)
    assert maybe_create_object_store_from_uri(tmp_path) is None


@pytest.mark.parametrize(
    "made",
    [
        lambda path: CheckpointSaver(path, path.name, path, path.name, path),
        lambda path: LoadCheckpoint(path),
        lambda path: ExportForInferenceCallback("torchscript", path),
        lambda path: MemorySnapshot(folder=path, filename=Path("m"), remote_file_name=Path("r")),
        lambda path: FileLogger(filename=path, remote_file_name=Path("r")),
        lambda path: JSONTraceHandler(path, Path("a.json"), Path("r"), Path("m.json"), Path("n")),
    ],
)
def test_callbacks_and_loggers(made, tmp_path) -> None:
    """What they keep of names at a store is text, which is cut and joined there."""
    listener = made(tmp_path / "name")
    parts = [listener, *(vars(listener).get(name) for name in ("files", "_files", "_run_file"))]
    kept = {name: value for part in parts if part is not None for name, value in vars(part).items()}
    assert not [name for name, value in kept.items() if isinstance(value, Path) and "remote" in name]


def test_logger_forwards_files(tmp_path) -> None:
    state = State(model=torch.nn.Linear(1, 1), run_name="night")
    names: list[str] = []

    class Keeper(FileLogger):
        def upload_file(self, state, remote_file_name, file_path, *, overwrite=False) -> None:
            names.append(remote_file_name)

    (tmp_path / "a").touch()
    Logger(state, [Keeper(str(tmp_path / "log.txt"))]).upload_file(Path("{run_name}/a"), tmp_path / "a")
    assert names == ["night/a"]
