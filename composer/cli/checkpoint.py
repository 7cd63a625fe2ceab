"""``composer checkpoint``: inspect a checkpoint, or convert it to another format."""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from torch import Tensor

from composer import trees
from composer._text import dtype_name, plural, printable

__all__ = ["add_to"]


def add_to(commands: Any) -> None:
    """Add the command to a parser.

    Args:
        commands: What ``add_subparsers`` of the parser returned.

    >>> parser = argparse.ArgumentParser()
    >>> add_to(parser.add_subparsers())
    >>> parser.parse_args(["checkpoint", "inspect", "ep1.pt"]).path
    PosixPath('ep1.pt')
    """
    group = commands.add_parser("checkpoint", help="inspect and convert checkpoints")
    actions = group.add_subparsers(title="actions", required=True, metavar="ACTION")

    inspect = actions.add_parser("inspect", help="show the contents of a checkpoint", description="Show its contents.")
    inspect.add_argument("path", type=Path, help="a checkpoint (file or folder) or a safetensors file")
    inspect.add_argument("--weights", action="store_true", help="list every tensor of the model")
    inspect.set_defaults(run=_inspect)

    convert = actions.add_parser(
        "convert",
        help="convert a checkpoint to another format",
        description="The suffix of the destination selects the format: x.pt is a single file, x.dcp a sharded "
        "checkpoint folder, x.safetensors a safetensors file, a name without a suffix the folder of a Hugging Face "
        "model. The last two contain only the weights.",
    )
    convert.add_argument("source", type=Path, help="the checkpoint to read")
    convert.add_argument("destination", type=Path, help="the file or folder to write")
    convert.add_argument("--overwrite", action="store_true", help="replace an existing file")
    convert.set_defaults(run=_convert)


def _convert(given: argparse.Namespace) -> None:
    from composer.checkpoint.convert import convert_checkpoint

    convert_checkpoint(given.source, given.destination, overwrite=given.overwrite)


def _inspect(given: argparse.Namespace) -> None:
    from rich.console import Console
    from rich.markup import escape

    from composer.checkpoint.load import open_checkpoint

    content = open_checkpoint(given.path)
    state: dict[str, Any] = content["state"]
    console = Console(highlight=False, soft_wrap=True)
    files = [path for path in given.path.iterdir() if path.is_file()] if given.path.is_dir() else [given.path]
    console.print(f"[bold]{escape(str(given.path))}[/bold], {_bytes(sum(path.stat().st_size for path in files))}")
    entries = {**state, **{name: value for name, value in content.items() if name != "state"}}
    rows = [[name, _describe(value), *_sizes(value)] for name, value in entries.items()]
    console.print(_table(["entry", "contents", "tensors", "size"], rows))
    for title, value in (
        ("timestamp", state.get("timestamp", {}).get("Timestamp", {})),
        ("saved by", _versions(state)),
    ):
        text = ", ".join(f"{name} {one}" for name, one in value.items() if one or name in ("epoch", "batch"))
        if text:
            console.print(f"{title}: {escape(printable(text))}")
    if (origin := state.get("forked_from")) is not None:
        changes = ", ".join(origin["changes"]) or "no changes"
        told = f"{origin['run_name']}, batch {origin['step']} ({origin['path']}), with {changes}"
        console.print(f"forked from: {escape(printable(told))}")
    if given.weights:
        weights = [[n, str(tuple(w.shape)), dtype_name(w.dtype)] for n, w in _named(state["model"])]
        console.print(_table(["weight", "shape", "dtype"], weights))


def _table(columns: list[str], rows: list[list[str]]) -> Any:
    from rich.box import SIMPLE
    from rich.markup import escape
    from rich.table import Table

    table = Table(*columns, box=SIMPLE)
    for column in table.columns:
        column.overflow = "fold"
    for row in rows:
        table.add_row(*(escape(printable(cell)) for cell in row))
    return table


def _describe(value: Any) -> str:
    """Return a short description of an entry."""
    if isinstance(value, dict):
        return ", ".join(map(str, list(value)[:3])) + (f" and {len(value) - 3} more" if len(value) > 3 else "")
    if isinstance(value, list) and all(isinstance(one, tuple) and len(one) == 2 for one in value):
        return ", ".join(str(name) for name, _ in value)
    if isinstance(value, list):
        return plural(len(value), "rank")
    return str(value)


def _sizes(value: Any) -> tuple[str, str]:
    """Return the number of tensors and their size in bytes; shared memory counts once."""
    from composer.checkpoint.sharded_reader import pending_tensors

    found = [leaf for leaf in trees.leaves(value) if isinstance(leaf, Tensor)]
    storages = {leaf.untyped_storage().data_ptr(): leaf.untyped_storage().nbytes() for leaf in found}
    unread = [one for _, one in pending_tensors(value)]
    size = sum(storages.values()) + sum(math.prod(one.shape) * one.dtype.itemsize for one in unread)
    return (str(len(found) + len(unread)), _bytes(size)) if found or unread else ("", "")


def _versions(state: dict[str, Any]) -> dict[str, Any]:
    metadata = state.get("metadata", {})
    predecessor = metadata.get("composer_env_info", {})
    names = {"composer": "composer_version", "torch": "torch_version", "precision": "precision", "ranks": "world_size"}
    return {name: metadata.get(key, predecessor.get(key)) for name, key in names.items()}


def _named(model: Any) -> Iterator[tuple[str, Any]]:
    yield from ((name, value) for name, value in model.items() if hasattr(value, "dtype"))


def _bytes(count: float) -> str:
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} TB"
