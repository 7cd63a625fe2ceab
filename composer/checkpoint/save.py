"""Collecting what a checkpoint holds, and writing it."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from composer import dist, rng
from composer.checkpoint import file_format
from composer.checkpoint.contents import PARTS
from composer.checkpoint.excluded_weights import record_left_out
from composer.checkpoint.filters import IgnoreKeys
from composer.checkpoint.folder_conflicts import REST
from composer.checkpoint.plain_values import plain
from composer.checkpoint.safetensors_files import check_format, is_safetensors, write_safetensors
from composer.checkpoint.sharded_tensors import has_sharded, whole
from composer.checkpoint.sharded_writer import divide, files_of_process, write
from composer.core.name_placeholders import format_name
from composer.storage.atomic_upload import deliver
from composer.storage.uris import is_remote, local_path

if TYPE_CHECKING:
    from composer.core.checkpoint_folders import CheckpointFolders
    from composer.core.state import State

__all__ = ["collect", "folders_for", "get_save_filename", "save_checkpoint", "template_for", "write_file"]


def collect(
    state: State, *, weights_only: bool = False, ignore_keys: IgnoreKeys = None, metrics: bool = False
) -> dict[str, Any]:
    """Return what a checkpoint of a run holds; its tensors are those of the run, not copies.

    All processes must call this.

    Args:
        state: The state of the run.
        weights_only: Whether to leave out what only training needs.
        ignore_keys: What else to leave out, see :func:`.drop`.
        metrics: Whether to keep the state of the metrics.

    Raises:
        TypeError: A state has a value without a plain form, see :func:`.plain`.

    >>> from composer import State
    >>> sorted(collect(State(model=torch.nn.Linear(1, 1)), weights_only=True)["state"])
    ['integrations', 'metadata', 'model']
    """
    # First: to tell the place in the data may mean to fetch the next batch.
    numbers = None if weights_only else rng.get_rng_state()
    parts = [part for part in PARTS if part.with_weights or not weights_only]
    engine = None if state.checkpoint_folders is None else state.checkpoint_folders.engine
    if engine is not None:
        parts = [part for part in parts if part.name not in ("model", "optimizers")]
    taken = {part.name: part.take(state) for part in parts if metrics or not part.on_request}
    content: dict[str, Any] = {"state": {name: value for name, value in taken.items() if value is not None}}
    if engine is not None and weights_only:
        content["state"]["model"] = engine.weights()
    elif engine is not None:
        content["engine"] = engine.description()
    if numbers is not None:
        content["rng"] = numbers
    record_left_out(content, ignore_keys)
    # The states of random generators are plain, and have thousands of numbers.
    return {name: value if name == "rng" else plain(value, (name,)) for name, value in content.items()}


def save_checkpoint(
    state: State,
    filename: str | Path = "ep{epoch}-ba{batch}-rank{rank}",
    *,
    weights_only: bool = False,
    ignore_keys: IgnoreKeys = None,
) -> str | None:
    """Write a checkpoint of a run; all processes must call this.

    The first process writes a file, with whole tensors. Where ``state.checkpoint_folders`` says so, each writes its
    part to a folder that stands beside where the file would.

    Args:
        state: The state of the run.
        filename: Where to, a path or URI; may have names in braces such as ``{run_name}``, ``{epoch}`` and ``{batch}``.
            One that ends in ".safetensors" is written in that format, which has room for weights only. Of a folder the
            last part has another name, see :class:`.CheckpointFolders`.
        weights_only: Whether to leave out what only training needs.
        ignore_keys: What else to leave out, see :func:`.drop`.

    Returns:
        The path, or None on the other processes.

    Raises:
        OSError: It could not be written; a checkpoint that was there is as it was.
        TypeError: A state has a value that could not be read back; the error names it.
        ValueError: A safetensors file is to have more than weights.

    >>> from composer import State
    >>> path = save_checkpoint(State(model=torch.nn.Linear(1, 1)), str(tmp_path / "ep{epoch}.pt"))
    >>> path.endswith("ep0.pt")
    True
    """
    filename = os.fspath(filename)
    check_format("filename", filename, weights_only=weights_only)
    content = collect(state, weights_only=weights_only, ignore_keys=ignore_keys)
    path = get_save_filename(state, filename, weights_only=weights_only)
    is_first = dist.get_global_rank() == 0
    if (folders := folders_for(state, filename, weights_only=weights_only)) is not None:
        _save_folder(content, path, folders)
        return path if is_first else None
    if has_sharded(content):
        content = whole(content)
    if not is_first:
        return None
    if not is_remote(path):
        write_file(content, path)
        return path
    with tempfile.TemporaryDirectory(prefix="composer-") as folder:
        local = Path(folder, path.rpartition("/")[2])
        write_file(content, local)
        deliver(local, path)
    return path


def write_file(content: dict[str, Any], path: Path | str) -> None:
    """Write the content of a checkpoint in the format that the end of its name tells, whole or not at all.

    Args:
        content: As :func:`collect` returns it.
        path: Where to; with the end ".safetensors" the weights are written in that format, else all with torch.

    Raises:
        OSError: It could not be written.

    >>> write_file({"state": {"model": {"weight": torch.ones(2)}}}, tmp_path / "weights.safetensors")
    >>> [path.name for path in tmp_path.iterdir()]
    ['weights.safetensors']
    """
    if is_safetensors(path):
        write_safetensors(content["state"]["model"], path)
    else:
        file_format.write(content, path)


def get_save_filename(
    state: State, filename: str | Path = "ep{epoch}-ba{batch}-rank{rank}", *, weights_only: bool = False
) -> str:
    """Return the path of a checkpoint that is saved now, of a folder where checkpoints are folders.

    Args:
        state: The state of the run.
        filename: May have names in braces such as ``{run_name}``, ``{epoch}`` and ``{batch}``.
        weights_only: Whether it has weights only.

    >>> from composer import State
    >>> get_save_filename(State(model=torch.nn.Linear(1, 1)))
    'ep0-ba0-rank0'
    """
    path = format_name(template_for(state, filename, weights_only=weights_only), state.run_name, state.timestamp)
    return path if is_remote(path) else str(local_path(path))


def folders_for(state: State, filename: str | Path, *, weights_only: bool = False) -> CheckpointFolders | None:
    """Return how a checkpoint is divided among processes; None where it is one file.

    Args:
        state: The state of the run.
        filename: Name of the file; those of safetensors are always one.
        weights_only: Whether it has weights only, which engines hand out in one piece.

    >>> from composer import State
    >>> folders_for(State(model=torch.nn.Linear(1, 1)), "ep1.pt") is None
    True
    """
    folders = state.checkpoint_folders
    if folders is None or is_safetensors(filename) or (weights_only and folders.engine is not None):
        return None
    return folders


def template_for(state: State, filename: str | Path, *, weights_only: bool = False) -> str:
    """Return the name of checkpoints, of folders that stand where the files would where checkpoints are folders.

    Args:
        state: The state of the run.
        filename: Name of the files, with ``{epoch}``, ``{batch}`` and the like.
        weights_only: Whether they have weights only.

    >>> from composer import State
    >>> template_for(State(model=torch.nn.Linear(1, 1)), "ep{epoch}.pt")
    'ep{epoch}.pt'
    """
    folders = folders_for(state, filename, weights_only=weights_only)
    filename = os.fspath(filename)
    above, slash, _ = filename.rpartition("/")
    return filename if folders is None else f"{above}{slash}{folders.name}"


def _save_folder(content: dict[str, Any], path: str, folders: CheckpointFolders) -> None:
    """Write a folder here, or elsewhere: each process sends its files, and what tells of all comes last."""
    if not is_remote(path):
        write(divide(content), Path(path), planner=folders.save_planner, engine=folders.engine)
        return
    with tempfile.TemporaryDirectory(prefix="composer-") as above:
        local = Path(above, path.rpartition("/")[2])
        write(divide(content), local, apart=True, planner=folders.save_planner, engine=folders.engine)
        names = files_of_process(local)
        for name in names:
            if name != REST:
                deliver(local / name, f"{path}/{name}")
        dist.barrier()
        if REST in names:
            deliver(local / REST, f"{path}/{REST}")
        dist.barrier()
