"""Reading checkpoints that are folders: what is needed of each tensor, where it is needed."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor

from composer import dist
from composer.checkpoint import file_format
from composer.checkpoint.file_format import DamagedCheckpointError, damage_of
from composer.checkpoint.folder_conflicts import REST
from composer.checkpoint.folder_metadata import METADATA, check_stored, read_metadata
from composer.checkpoint.folder_tensors import read_into
from composer.checkpoint.on_all_ranks import Shared, replaced
from composer.checkpoint.sharded_writer import MARK, checksum

if TYPE_CHECKING:
    from composer.checkpoint.sharded_tensors import Layout

__all__ = ["Stored", "awaited", "check_folder", "fetch", "is_folder", "open_folder", "read_folder"]


@dataclass(frozen=True)
class Stored:
    """A tensor in a folder, which is not read yet.

    Attributes:
        folder: The folder.
        name: What it is called there.
        shape: Its shape.
        dtype: Its dtype.
        dims: Along which dimension each axis of the devices divided it when it was saved, or None where none did.
        checked: Whether the files that have it were compared with checksums.
        metadata: What the folder says of its tensors, if that was read.

    >>> Stored(Path("ep1"), "weight", (2,), torch.float32).dims is None
    True
    """

    folder: Path
    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype
    dims: tuple[int | None, ...] | None = None
    checked: bool = field(default=False, compare=False)
    metadata: Any = field(default=None, compare=False, repr=False)


def is_folder(path: Path | str) -> bool:
    """Tell whether a path is that of a folder of ``torch.distributed.checkpoint``.

    Args:
        path: The path.

    >>> is_folder(tmp_path)
    False
    """
    return (Path(path) / METADATA).is_file()


def open_folder(folder: Path | str, *, together: bool = False) -> dict[str, Any]:
    """Return the content of a folder in the form of a checkpoint, with a :class:`Stored` for each tensor in the files.

    A folder that another program has written is taken for weights: those below ``"state"`` and ``"model"``, below
    ``"model"``, or all.

    Args:
        folder: The folder.
        together: Whether all processes call this, and share the work of checking the files.

    Raises:
        FileNotFoundError: There is none.
        DamagedCheckpointError: It is not what was written.
        UnsafeCheckpointError: Reading it would run code.

    >>> from composer.checkpoint.sharded_writer import divide, write
    >>> write(divide({"state": {"model": {"weight": torch.ones(2)}}}), tmp_path / "ep1")
    >>> open_folder(tmp_path / "ep1")["state"]["model"]["weight"].shape
    (2,)
    """
    folder = Path(folder).resolve()
    if not is_folder(folder) and not (folder / REST).is_file():
        raise FileNotFoundError(f"There is no checkpoint in {str(folder)!r}: it has no file {METADATA!r}.")
    if not (folder / REST).is_file():
        if os.path.lexists(folder / REST):  # or the weights would be taken for those of another program
            raise DamagedCheckpointError(f"{str(folder)!r} is damaged: {REST!r} is not a file. Load an earlier one.")
        return {"state": {"model": _foreign_weights(folder)}}
    rest = check_folder(folder, together=together)
    if not is_folder(folder):
        if "engine" not in rest["content"]:
            raise DamagedCheckpointError(f"{str(folder)!r} is damaged: {METADATA!r} is missing. Load an earlier one.")
        return {**rest["content"], "folder": str(folder)}  # for the engine that has written it
    metadata = read_metadata(folder)

    def stored(node: Any) -> Any:
        if not isinstance(node, dict) or MARK not in node:
            return node
        with damage_of(repr(str(folder / REST)), "its content"):
            name, dims = node[MARK], node["dims"]
            if type(name) is not str or not (dims is None or set(map(type, dims)) <= {int, type(None)}):
                raise ValueError(f"it has {node!r} in place of a tensor")
        return _stored(folder, name, metadata, dims, rest["files"])

    return replaced(rest["content"], stored)


def read_folder(folder: Path | str) -> dict[str, Any]:
    """Read a folder with all of its tensors, whole and in host memory.

    Args:
        folder: The folder.

    Raises:
        FileNotFoundError: There is none.
        DamagedCheckpointError: It is not what was written.
        UnsafeCheckpointError: Reading it would run code.

    >>> from composer.checkpoint.sharded_writer import divide, write
    >>> write(divide({"state": {"model": {"weight": torch.ones(2)}}}), tmp_path / "ep1")
    >>> read_folder(tmp_path / "ep1")
    {'state': {'model': {'weight': tensor([1., 1.])}}}
    """
    return fetch(open_folder(folder))


def fetch(tree: Any, layout: Layout | None = None, planner: Any = None) -> Any:
    """Return nested containers with tensors in place of each :class:`Stored` and :class:`.Shared`.

    For the latter all processes must call this.

    Args:
        tree: The containers, a checkpoint or a part of one.
        layout: How the tensors are to lie; None is whole, in host memory.
        planner: A ``LoadPlanner`` that decides what is read, or None.

    Raises:
        DamagedCheckpointError: A file does not have what it should.

    >>> fetch({"weight": Shared((1,), torch.float32, torch.ones(1)), "epoch": 1})
    {'weight': tensor([1.]), 'epoch': 1}
    """
    made: dict[int, Tensor] = {}
    read: dict[str, Tensor] = {}
    folder: Path | None = None
    checked, metadata = False, None
    for path, one in awaited(tree):
        if isinstance(one, Shared):
            whole = one.receive()
            made[id(one)] = whole if layout is None else layout.placed(whole, path)
            continue
        folder, checked, metadata = one.folder, one.checked, one.metadata
        if one.name not in read:
            empty = torch.empty(one.shape, dtype=one.dtype)
            read[one.name] = empty if layout is None else layout.empty(path, one.shape, one.dtype, one.dims)
        made[id(one)] = read[one.name]
    if folder is not None:
        read_into(read, folder, planner, checked=checked, metadata=metadata)
    return replaced(tree, lambda node: made.get(id(node), node)) if made else tree


def check_folder(folder: Path, *, together: bool = False) -> dict[str, Any]:
    """Compare the files of a folder with what was written, and return what the file beside the tensors holds.

    Args:
        folder: The folder.
        together: Whether all processes call this. Those of a node share the work, and all raise.

    Returns:
        The checkpoint without its tensors as ``"content"``, and size and checksum of the other files as ``"files"``.

    Raises:
        DamagedCheckpointError: A file is missing or differs.
        UnsafeCheckpointError: Reading it would run code.

    >>> from composer.checkpoint.sharded_writer import divide, write
    >>> write(divide({"state": {"model": {"weight": torch.ones(2)}}}), tmp_path / "ep1")
    >>> sorted(check_folder(tmp_path / "ep1")["files"])
    ['.metadata', '__0_0.distcp']
    """
    rest: dict[str, Any] = {}
    failure: Exception | None = None
    damaged: list[str] = []
    try:
        rest = file_format.read(folder / REST)
        with damage_of(repr(str(folder / REST)), "its list of files"):
            files = _checked_files(folder, rest)
        first, step = (dist.get_local_rank(), dist.get_local_world_size()) if together else (0, 1)
        damaged = [text for name in sorted(files)[first::step] if (text := _damage(folder / name, files[name]))]
    except Exception as error:
        failure, damaged = error, [str(error)]
    everywhere = dist.all_gather_object(damaged) if together else [damaged]
    if failure is not None:
        raise failure
    if told := sorted({text for texts in everywhere for text in texts}):
        raise DamagedCheckpointError(f"{str(folder)!r} is damaged: {'; '.join(told)}. Load an earlier checkpoint.")
    return rest


def awaited(node: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[tuple[Any, ...], Stored | Shared]]:
    """Iterate over what stands in place of tensors, with its keys.

    Args:
        node: A checkpoint, or a part of one.
        path: Keys that stand before those.

    >>> list(awaited({"weight": torch.ones(1)}))
    []
    """
    if isinstance(node, (Stored, Shared)):
        yield path, node
    elif isinstance(node, dict):
        for key, value in cast("dict[Any, Any]", node).items():
            yield from awaited(value, (*path, key))
    elif isinstance(node, (list, tuple)):
        for number, value in enumerate(cast("list[Any]", node)):
            yield from awaited(value, (*path, number))


def _checked_files(folder: Path, rest: dict[str, Any]) -> dict[str, dict[str, int]]:
    """The files that a folder should have, if what says so is as it was written."""
    files = rest.get("files")
    if not isinstance(rest.get("content"), dict) or not isinstance(files, dict):
        raise ValueError("it has none, or nothing beside it")
    for name, written in cast("dict[Any, Any]", files).items():
        if type(name) is not str or Path(name).name != name:
            raise ValueError(f"{name!r} is no plain name of a file, and is not followed")
        if type(written) is not dict or {key: type(value) for key, value in written.items()} != _WRITTEN:
            raise ValueError(f"it does not tell size and checksum of {name!r}")
    if is_folder(folder) and METADATA not in files:
        raise ValueError(f"{METADATA!r} is not among them")
    return cast("dict[str, dict[str, int]]", files)


_WRITTEN = {"size": int, "crc32": int}


def _damage(path: Path, written: Mapping[str, int]) -> str | None:
    if not path.is_file():
        return f"{path.name!r} is missing"
    if path.stat().st_size != written["size"]:
        return f"{path.name!r} has {path.stat().st_size} bytes of {written['size']}"
    if checksum(path) != written:
        return f"the checksum of {path.name!r} is not that of what was written"
    return None


def _stored(folder: Path, name: str, metadata: Any, dims: Any = None, files: Mapping[str, Any] | None = None) -> Stored:
    one = metadata.state_dict_metadata.get(name)
    if not hasattr(one, "size"):
        raise DamagedCheckpointError(f"{str(folder)!r} is damaged: it does not have the tensor {name!r}.")
    check_stored(folder, name, metadata, None if files is None else tuple(files))
    dims = None if dims is None else tuple(dims)
    return Stored(folder, name, tuple(one.size), one.properties.dtype, dims, files is not None, metadata)


def _foreign_weights(folder: Path) -> dict[str, Any]:
    """The weights in a folder that has nothing of ours."""
    metadata = read_metadata(folder)
    described = [name for name, one in metadata.state_dict_metadata.items() if hasattr(one, "size")]
    paths: dict[str, Any] = metadata.planner_data or {}
    for above in (("state", "model"), ("model",), ("app", "model")):
        # By the keys where these are told, as a name may have dots of its own.
        found = {
            ".".join(map(str, paths[name][len(above) :])): _stored(folder, name, metadata)
            for name in described
            if len(paths.get(name, ())) > len(above) and tuple(paths[name][: len(above)]) == above
        }
        if found:
            return found
    return {name: _stored(folder, name, metadata) for name in described}
