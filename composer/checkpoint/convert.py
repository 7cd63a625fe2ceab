"""Convert a checkpoint to another format: ``.pt`` file, sharded folder, safetensors, or Hugging Face model folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from composer.checkpoint import file_format
from composer.checkpoint.huggingface import read_pretrained, write_pretrained
from composer.checkpoint.load import read_checkpoint
from composer.checkpoint.safetensors_files import is_safetensors, write_safetensors
from composer.checkpoint.sharded_reader import is_sharded_checkpoint
from composer.checkpoint.sharded_writer import shard_checkpoint, write_sharded

__all__ = ["convert_checkpoint"]

_WITH_WEIGHTS = ("model", "integrations", "metadata")


def convert_checkpoint(source: Path | str, destination: Path | str, *, overwrite: bool = False) -> None:
    """Convert a checkpoint to another format.

    The extension selects the format: ".safetensors" is a safetensors file, ".dcp" a sharded folder, a name without
    extension a Hugging Face model folder, and any other name a ``torch.save`` file. Files and sharded folders hold the
    full checkpoint; the other formats, and files converted from them, have only the weights. A Hugging Face folder
    requires a checkpoint with the model's configuration, as :class:`.HuggingFaceModel` saves it.

    Args:
        source: The checkpoint to read.
        destination: The checkpoint to write.
        overwrite: Whether to replace an existing file; folders are never replaced.

    Raises:
        FileExistsError: The destination exists.
        FileNotFoundError: The source does not exist.
        ValueError: Both have the same format, or the source lacks something that the format needs.

    >>> file_format.write({"state": {"model": {"weight": torch.ones(1)}}}, tmp_path / "a.pt")
    >>> convert_checkpoint(tmp_path / "a.pt", tmp_path / "a.safetensors")
    >>> read_checkpoint(tmp_path / "a.safetensors")
    {'state': {'model': {'weight': tensor([1.])}}}
    """
    source, destination = Path(source), Path(destination)
    before = ("sharded" if is_sharded_checkpoint(source) else "folder") if source.is_dir() else _format(source)
    after = _format(destination)
    if before == after:
        raise ValueError(f"{str(source)!r} and {str(destination)!r} have the same format; copy it instead.")
    is_folder = after in ("folder", "sharded")
    if destination.exists() and (is_folder or not overwrite):
        remedy = "Pass another name." if is_folder else "Pass another name, or overwrite=True."
        raise FileExistsError(f"{str(destination)!r} exists already. {remedy}")
    content = read_pretrained(source) if before == "folder" else read_checkpoint(source)
    state: dict[str, Any] = content["state"]
    if "model" not in state:
        raise ValueError(f"{str(source)!r} has no weights; it was saved without them.")
    if after == "folder":
        write_pretrained(state, destination)
    elif after == "safetensors":
        write_safetensors(state["model"], destination)
    else:
        if {before, after} != {"sharded", "checkpoint"}:
            content = {"state": {name: state[name] for name in _WITH_WEIGHTS if name in state}}
        if after == "sharded":
            write_sharded(shard_checkpoint(content), destination)
        else:
            file_format.write(content, destination)


def _format(path: Path) -> str:
    if is_safetensors(path):
        return "safetensors"
    return "sharded" if path.suffix == ".dcp" else "checkpoint" if path.suffix else "folder"
