"""Collecting what a checkpoint holds, and writing it."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from composer import dist, rng
from composer.checkpoint import archive
from composer.checkpoint.filters import IgnoreKeys, drop
from composer.checkpoint.parts import PARTS
from composer.checkpoint.safetensors_files import check_format, is_safetensors, write_safetensors
from composer.core._names import format_name
from composer.storage.delivery import deliver
from composer.storage.uris import is_remote, local_path

if TYPE_CHECKING:
    from composer.core.state import State

__all__ = ["collect", "get_save_filename", "save_checkpoint", "write_file"]


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

    >>> from composer import State
    >>> sorted(collect(State(model=torch.nn.Linear(1, 1)), weights_only=True)["state"])
    ['integrations', 'metadata', 'model']
    """
    # First: to tell the place in the data may mean to fetch the next batch.
    numbers = None if weights_only else rng.get_rng_state()
    parts = [part for part in PARTS if part.with_weights or not weights_only]
    taken = {part.name: part.take(state) for part in parts if metrics or not part.on_request}
    content: dict[str, Any] = {"state": {name: value for name, value in taken.items() if value is not None}}
    if numbers is not None:
        content["rng"] = numbers
    drop(content, ignore_keys)
    return content


def save_checkpoint(
    state: State,
    filename: str = "ep{epoch}-ba{batch}-rank{rank}",
    *,
    weights_only: bool = False,
    ignore_keys: IgnoreKeys = None,
) -> str | None:
    """Write a checkpoint of a run; all processes must call this, and the first writes.

    Args:
        state: The state of the run.
        filename: Where to, a path or URI; may have names in braces such as ``{run_name}``, ``{epoch}`` and ``{batch}``.
            One that ends in ".safetensors" is written in that format, which has room for weights only.
        weights_only: Whether to leave out what only training needs.
        ignore_keys: What else to leave out, see :func:`.drop`.

    Returns:
        The path, or None on the other processes.

    Raises:
        OSError: It could not be written; a checkpoint that was there is as it was.
        ValueError: A safetensors file is to have more than weights.

    >>> from composer import State
    >>> path = save_checkpoint(State(model=torch.nn.Linear(1, 1)), str(tmp_path / "ep{epoch}.pt"))
    >>> path.endswith("ep0.pt")
    True
    """
    check_format("filename", filename, weights_only=weights_only)
    content = collect(state, weights_only=weights_only, ignore_keys=ignore_keys)
    if dist.get_global_rank() != 0:
        return None
    path = get_save_filename(state, filename)
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
        archive.write(content, path)


def get_save_filename(state: State, filename: str = "ep{epoch}-ba{batch}-rank{rank}") -> str:
    """Return the path of a checkpoint that is saved now.

    Args:
        state: The state of the run.
        filename: May have names in braces such as ``{run_name}``, ``{epoch}`` and ``{batch}``.

    >>> from composer import State
    >>> get_save_filename(State(model=torch.nn.Linear(1, 1)))
    'ep0-ba0-rank0'
    """
    path = format_name(filename, state.run_name, state.timestamp)
    return path if is_remote(path) else str(local_path(path))
