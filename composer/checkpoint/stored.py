"""Reading checkpoints that are folders: what is needed of each tensor, where it is needed."""

from __future__ import annotations

import importlib
import io
import pathlib
import pickle
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor

from composer import dist
from composer.checkpoint import archive
from composer.checkpoint.archive import DamagedCheckpointError, UnsafeCheckpointError
from composer.checkpoint.folders import REST
from composer.checkpoint.sharded import MARK, checksum
from composer.checkpoint.sharing import Shared, replaced

if TYPE_CHECKING:
    from composer.checkpoint.tensors import Layout

__all__ = ["Stored", "awaited", "check_folder", "fetch", "is_folder", "open_folder", "read_folder", "read_metadata"]

_METADATA = ".metadata"


@dataclass(frozen=True)
class Stored:
    """A tensor in a folder, which is not read yet.

    Attributes:
        folder: The folder.
        name: What it is called there.
        shape: Its shape.
        dtype: Its dtype.
        dims: Along which dimension each axis of the devices divided it when it was saved, or None where none did.

    >>> Stored(Path("ep1"), "weight", (2,), torch.float32).dims is None
    True
    """

    folder: Path
    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype
    dims: tuple[int | None, ...] | None = None


def is_folder(path: Path | str) -> bool:
    """Tell whether a path is that of a folder of ``torch.distributed.checkpoint``.

    Args:
        path: The path.

    >>> is_folder(tmp_path)
    False
    """
    return (Path(path) / _METADATA).is_file()


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

    >>> from composer.checkpoint.sharded import divide, write
    >>> write(divide({"state": {"model": {"weight": torch.ones(2)}}}), tmp_path / "ep1")
    >>> open_folder(tmp_path / "ep1")["state"]["model"]["weight"].shape
    (2,)
    """
    folder = Path(folder).resolve()
    if (folder / REST).is_file() and not is_folder(folder):
        check_folder(folder, together=together)
        return {**archive.read(folder / REST)["content"], "folder": str(folder)}  # for the engine that has written it
    if not is_folder(folder):
        raise FileNotFoundError(f"There is no checkpoint in {str(folder)!r}: it has no file {_METADATA!r}.")
    if not (folder / REST).is_file():
        return {"state": {"model": _foreign_weights(folder)}}
    check_folder(folder, together=together)
    described = read_metadata(folder).state_dict_metadata

    def stored(node: Any) -> Any:
        return _stored(folder, node[MARK], described, node["dims"]) if isinstance(node, dict) and MARK in node else node

    return replaced(archive.read(folder / REST)["content"], stored)


def read_folder(folder: Path | str) -> dict[str, Any]:
    """Read a folder with all of its tensors, whole and in host memory.

    Args:
        folder: The folder.

    Raises:
        FileNotFoundError: There is none.
        DamagedCheckpointError: It is not what was written.
        UnsafeCheckpointError: Reading it would run code.

    >>> from composer.checkpoint.sharded import divide, write
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
    for path, one in awaited(tree):
        if isinstance(one, Shared):
            whole = one.receive()
            made[id(one)] = whole if layout is None else layout.placed(whole, path)
            continue
        folder = one.folder
        if one.name not in read:
            empty = torch.empty(one.shape, dtype=one.dtype)
            read[one.name] = empty if layout is None else layout.empty(path, one.shape, one.dtype, one.dims)
        made[id(one)] = read[one.name]
    if folder is not None:
        _read_into(read, folder, planner)
    return replaced(tree, lambda node: made.get(id(node), node)) if made else tree


def check_folder(folder: Path, *, together: bool = False) -> None:
    """Compare the files of a folder with what was written.

    Args:
        folder: The folder.
        together: Whether all processes call this. Those of a node share the work, and all raise.

    Raises:
        DamagedCheckpointError: One is missing or differs.

    >>> from composer.checkpoint.sharded import divide, write
    >>> write(divide({"state": {"model": {"weight": torch.ones(2)}}}), tmp_path / "ep1")
    >>> check_folder(tmp_path / "ep1")
    """
    try:
        files: dict[str, dict[str, int]] = archive.read(folder / REST)["files"]
        first, step = (dist.get_local_rank(), dist.get_local_world_size()) if together else (0, 1)
        names = sorted(files)[first::step]
        damaged = [text for name in names if (text := _damage(folder / name, files[name]))]
    except (DamagedCheckpointError, UnsafeCheckpointError) as error:
        damaged = [str(error)]
    everywhere = dist.all_gather_object(damaged) if together else [damaged]
    if told := sorted({text for texts in everywhere for text in texts}):
        raise DamagedCheckpointError(f"{str(folder)!r} is damaged: {'; '.join(told)}. Load an earlier checkpoint.")


def read_metadata(folder: Path) -> Any:
    """Return what a folder says of its tensors, without running anything that it holds.

    Args:
        folder: The folder.

    Raises:
        DamagedCheckpointError: The file that says it cannot be read.
        UnsafeCheckpointError: Reading it would run code.

    >>> from composer.checkpoint.sharded import divide, write
    >>> write(divide({"state": {"model": {"weight": torch.ones(2)}}}), tmp_path / "ep1")
    >>> list(read_metadata(tmp_path / "ep1").state_dict_metadata)
    ['state.model.weight']
    """
    path = folder / _METADATA
    try:
        return _Metadata(io.BytesIO(path.read_bytes())).load()
    except (UnsafeCheckpointError, OSError):
        raise
    except Exception as error:
        raise DamagedCheckpointError(f"{str(path)!r} cannot be read: {error}") from error


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


class _Metadata(pickle.Unpickler):
    """Makes the descriptions of tensors and nothing else."""

    _CLASSES = "torch.distributed.checkpoint.metadata"
    _OTHERS = frozenset(
        {
            "torch.distributed.checkpoint.filesystem._StorageInfo",
            "torch.Size",
            "torch.serialization._get_layout",
            "collections.OrderedDict",
        }
    )

    def find_class(self, module_name: str, global_name: str, /) -> Any:
        if module_name.startswith("pathlib"):  # where it was written, perhaps by another kind of system
            return pathlib.PurePath
        name = f"{module_name}.{global_name}"
        if module_name == self._CLASSES or name in self._OTHERS:
            found = getattr(importlib.import_module(module_name), global_name, None)
            # Not what the module itself has imported.
            if name in self._OTHERS or (isinstance(found, type) and found.__module__ == module_name):
                return found
        if module_name == "torch" and isinstance(getattr(torch, global_name, None), torch.dtype):
            return getattr(torch, global_name)
        raise UnsafeCheckpointError(f"The folder describes its tensors by {name!r}, which could run code.")


def _read_into(tensors: Mapping[str, Tensor], folder: Path, planner: Any) -> None:
    """Fill tensors with the parts of those in the files that they are to have."""
    dcp: Any = importlib.import_module("torch.distributed.checkpoint")
    reader = dcp.FileSystemReader(folder)
    metadata = read_metadata(folder)
    planner = dcp.DefaultLoadPlanner() if planner is None else planner
    try:
        planner.set_up_planner(dict(tensors), metadata, is_coordinator=True)
        reader.set_up_storage_reader(metadata, is_coordinator=True)
        plan = reader.prepare_local_plan(planner.create_local_plan())
        (plan,) = reader.prepare_global_plan(planner.create_global_plan([plan]))
        reader.read_data(planner.finish_plan(plan), planner).wait()
    except (OSError, RuntimeError, pickle.UnpicklingError, EOFError) as error:
        raise DamagedCheckpointError(f"{str(folder)!r} cannot be read: {error}") from error


def _damage(path: Path, written: Mapping[str, int]) -> str | None:
    if not path.is_file():
        return f"{path.name!r} is missing"
    if path.stat().st_size != written["size"]:
        return f"{path.name!r} has {path.stat().st_size} bytes of {written['size']}"
    if checksum(path) != written:
        return f"the checksum of {path.name!r} is not that of what was written"
    return None


def _stored(folder: Path, name: str, described: Mapping[str, Any], dims: Any = None) -> Stored:
    if name not in described:
        raise DamagedCheckpointError(f"{str(folder)!r} is damaged: it does not have the tensor {name!r}.")
    one = described[name]
    return Stored(folder, name, tuple(one.size), one.properties.dtype, None if dims is None else tuple(dims))


def _foreign_weights(folder: Path) -> dict[str, Any]:
    """The weights in a folder that has nothing of ours."""
    metadata = read_metadata(folder)
    described = {name: one for name, one in metadata.state_dict_metadata.items() if hasattr(one, "size")}
    paths: dict[str, Any] = metadata.planner_data or {}
    for above in (("state", "model"), ("model",), ("app", "model")):
        # By the keys where these are told, as a name may have dots of its own.
        found = {
            ".".join(map(str, paths[name][len(above) :])): _stored(folder, name, described)
            for name in described
            if len(paths.get(name, ())) > len(above) and tuple(paths[name][: len(above)]) == above
        }
        if found:
            return found
    return {name: _stored(folder, name, described) for name in described}
