"""Save a checkpoint: collect the state of a run, and write it to a file, a sharded folder, or a remote URI."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from composer import dist, rng
from composer.checkpoint import file_format
from composer.checkpoint.contents import STATE_ENTRIES
from composer.checkpoint.excluded_weights import exclude_and_record
from composer.checkpoint.filters import IgnoreKeys
from composer.checkpoint.folder_conflicts import MANIFEST
from composer.checkpoint.plain_values import plain
from composer.checkpoint.rank_values import is_gathered_everywhere, values_of_ranks
from composer.checkpoint.safetensors_files import check_format, is_safetensors, write_safetensors
from composer.checkpoint.sharded_tensors import has_sharded_tensors, unshard
from composer.checkpoint.sharded_writer import files_of_rank, shard_checkpoint, write_sharded
from composer.core.name_placeholders import format_name
from composer.ledger.category import Category
from composer.ledger.clock import timed_as
from composer.storage.atomic_upload import deliver
from composer.storage.uris import is_remote, local_path

if TYPE_CHECKING:
    from composer.core.checkpoint_folders import CheckpointFolders
    from composer.core.state import State

__all__ = ["collect", "folders_for", "get_save_filename", "save_checkpoint", "template_for", "write_file"]


def collect(
    state: State, *, weights_only: bool = False, ignore_keys: IgnoreKeys = None, metrics: bool = False
) -> dict[str, Any]:
    """Return the content of a checkpoint; its tensors are those of the run, not copies.

    All ranks must call this. Only rank 0, which writes them, gets the random states, positions and metrics of all.

    Args:
        state: The state of the run.
        weights_only: Whether to leave out what only training needs.
        ignore_keys: What else to leave out, see :func:`.drop`.
        metrics: Whether to include the state of the metrics.

    Raises:
        TypeError: A state has a value without a plain form, see :func:`.plain`.

    >>> from composer import State
    >>> sorted(collect(State(model=torch.nn.Linear(1, 1)), weights_only=True)["state"])
    ['integrations', 'metadata', 'model']
    """
    # First, since finding the position in the data may fetch the next batch.
    rng_state = None if weights_only else _rng_of_ranks(state)
    entries = [entry for entry in STATE_ENTRIES if entry.in_weights_only or not weights_only]
    engine = None if state.checkpoint_folders is None else state.checkpoint_folders.engine
    if engine is not None:
        entries = [entry for entry in entries if entry.name not in ("model", "optimizers")]
    values = {entry.name: entry.get(state) for entry in entries if metrics or not entry.on_request}
    content: dict[str, Any] = {"state": {name: value for name, value in values.items() if value is not None}}
    if engine is not None and weights_only:
        content["state"]["model"] = engine.weights()
    elif engine is not None:
        content["engine"] = engine.description()
    if rng_state is not None:
        content["rng"] = rng_state
    exclude_and_record(content, ignore_keys)
    # Random states are plain already, and have thousands of numbers.
    return {name: value if name == "rng" else plain(value, (name,)) for name, value in content.items()}


def _rng_of_ranks(state: State) -> list[dict[str, Any]]:
    """Return the random states with which training continues: until it starts, those of a loaded checkpoint."""
    if state.loaded is not None and state.loaded.rng is not None:
        return state.loaded.rng if is_gathered_everywhere() or dist.get_global_rank() == 0 else []
    return values_of_ranks(state.rng_before_evaluation or rng.get_local_rng_state())


@timed_as(Category.SAVING)
def save_checkpoint(
    state: State,
    filename: str | Path = "ep{epoch}-ba{batch}-rank{rank}",
    *,
    weights_only: bool = False,
    ignore_keys: IgnoreKeys = None,
) -> str | None:
    """Save a checkpoint of a run; all ranks must call this.

    Rank 0 writes a file with full (unsharded) tensors. If ``state.checkpoint_folders`` is set, each rank writes its
    shards to a folder next to where the file would be.

    Args:
        state: The state of the run.
        filename: Path or URI; may have placeholders such as ``{run_name}``, ``{epoch}`` and ``{batch}``. A name that
            ends in ".safetensors" selects that format, which holds weights only. For a sharded folder the last path
            component is replaced, see :class:`.CheckpointFolders`.
        weights_only: Whether to leave out what only training needs.
        ignore_keys: What else to leave out, see :func:`.drop`.

    Returns:
        The path; None on other ranks than rank 0.

    Raises:
        OSError: It could not be written; an existing checkpoint is unchanged.
        TypeError: A state has a value that could not be read back; the error names it.
        ValueError: A safetensors file is requested for more than weights.

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
    if has_sharded_tensors(content):
        content = unshard(content)
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
    """Write the content of a checkpoint atomically, in the format given by the file extension.

    Args:
        content: As :func:`collect` returns it.
        path: The destination; ".safetensors" writes the weights in that format, any other name a ``torch.save`` file.

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
    """Return the path of a checkpoint that is saved now: of the file, or of the sharded folder.

    Args:
        state: The state of the run.
        filename: May have placeholders such as ``{run_name}``, ``{epoch}`` and ``{batch}``.
        weights_only: Whether it has weights only.

    >>> from composer import State
    >>> get_save_filename(State(model=torch.nn.Linear(1, 1)))
    'ep0-ba0-rank0'
    """
    path = format_name(template_for(state, filename, weights_only=weights_only), state.run_name, state.timestamp)
    return path if is_remote(path) else str(local_path(path))


def folders_for(state: State, filename: str | Path, *, weights_only: bool = False) -> CheckpointFolders | None:
    """Return how a checkpoint is sharded; None if it is a single file.

    Args:
        state: The state of the run.
        filename: Name of the file; a safetensors checkpoint is always a single file.
        weights_only: Whether it has weights only, which engines return unsharded.

    >>> from composer import State
    >>> folders_for(State(model=torch.nn.Linear(1, 1)), "ep1.pt") is None
    True
    """
    folders = state.checkpoint_folders
    if folders is None or is_safetensors(filename) or (weights_only and folders.engine is not None):
        return None
    return folders


def template_for(state: State, filename: str | Path, *, weights_only: bool = False) -> str:
    """Return the name template of checkpoints: of the files, or of the sharded folders in their place.

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
    """Write a sharded folder; for a URI each rank uploads its files, and the manifest is uploaded last."""
    if not is_remote(path):
        write_sharded(shard_checkpoint(content), Path(path), planner=folders.save_planner, engine=folders.engine)
        return
    with tempfile.TemporaryDirectory(prefix="composer-") as above:
        local = Path(above, path.rpartition("/")[2])
        write_sharded(
            shard_checkpoint(content), local, per_rank_folder=True, planner=folders.save_planner, engine=folders.engine
        )
        names = files_of_rank(local)
        for name in names:
            if name != MANIFEST:
                deliver(local / name, f"{path}/{name}")
        dist.barrier()
        if MANIFEST in names:
            deliver(local / MANIFEST, f"{path}/{MANIFEST}")
        dist.barrier()
