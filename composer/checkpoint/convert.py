"""Checkpoints in other forms: files, folders of several processes, safetensors, folders of Hugging Face models."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from composer.checkpoint import file_format
from composer.checkpoint.huggingface import read_folder, write_folder
from composer.checkpoint.load import read_checkpoint
from composer.checkpoint.safetensors_files import is_safetensors, write_safetensors
from composer.checkpoint.sharded_reader import is_folder
from composer.checkpoint.sharded_writer import divide, write

__all__ = ["convert_checkpoint"]

_WITH_WEIGHTS = ("model", "integrations", "metadata")


def convert_checkpoint(source: Path | str, destination: Path | str, *, overwrite: bool = False) -> None:
    """Write a checkpoint in another form.

    The form is told by the name: ".safetensors" is a safetensors file, ".dcp" a folder such as several processes write,
    a name without an end the folder of a Hugging Face model, all else a file. Files and folders of processes hold the
    same, all of it; other forms, and files that are made of these, have the weights alone. The folder of a Hugging
    Face model can be made where the checkpoint has the configuration of the model, as those of such models have.

    Args:
        source: What to read.
        destination: What to write.
        overwrite: Whether a file there is replaced; folders never are.

    Raises:
        FileExistsError: There is something at the destination.
        FileNotFoundError: The source is not there.
        ValueError: Both are of one form, or the source lacks what the form needs.

    >>> file_format.write({"state": {"model": {"weight": torch.ones(1)}}}, tmp_path / "a.pt")
    >>> convert_checkpoint(tmp_path / "a.pt", tmp_path / "a.safetensors")
    >>> read_checkpoint(tmp_path / "a.safetensors")
    {'state': {'model': {'weight': tensor([1.])}}}
    """
    source, destination = Path(source), Path(destination)
    before = ("parts" if is_folder(source) else "folder") if source.is_dir() else _form(source)
    after = _form(destination)
    if before == after:
        raise ValueError(f"{str(source)!r} and {str(destination)!r} are of one form; copy it.")
    keeps = after in ("folder", "parts")
    if destination.exists() and (keeps or not overwrite):
        remedy = "Give another name." if keeps else "Give another name, or overwrite=True."
        raise FileExistsError(f"There is {str(destination)!r} already. {remedy}")
    content = read_folder(source) if before == "folder" else read_checkpoint(source)
    state: dict[str, Any] = content["state"]
    if "model" not in state:
        raise ValueError(f"{str(source)!r} has no weights; it was saved without them.")
    if after == "folder":
        write_folder(state, destination)
    elif after == "safetensors":
        write_safetensors(state["model"], destination)
    else:
        if {before, after} != {"parts", "checkpoint"}:
            content = {"state": {name: state[name] for name in _WITH_WEIGHTS if name in state}}
        if after == "parts":
            write(divide(content), destination)
        else:
            file_format.write(content, destination)


def _form(path: Path) -> str:
    if is_safetensors(path):
        return "safetensors"
    return "parts" if path.suffix == ".dcp" else "checkpoint" if path.suffix else "folder"
