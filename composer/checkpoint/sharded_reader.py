"""Read sharded checkpoints (folders): each rank reads only the shards that it needs, resharded to its layout."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor

from composer import dist
from composer.checkpoint import file_format
from composer.checkpoint.file_format import DamagedCheckpointError, damage_of
from composer.checkpoint.folder_conflicts import MANIFEST
from composer.checkpoint.folder_metadata import METADATA, check_tensor_files, read_metadata
from composer.checkpoint.folder_tensors import read_into
from composer.checkpoint.on_all_ranks import BroadcastTensor, map_nodes
from composer.checkpoint.sharded_writer import TENSOR_KEY, checksum

if TYPE_CHECKING:
    from composer.checkpoint.sharded_tensors import Layout

__all__ = [
    "TensorMetadata",
    "is_sharded_checkpoint",
    "load_tensors",
    "open_sharded",
    "pending_tensors",
    "read_sharded",
    "verify_sharded",
]


@dataclass(frozen=True)
class TensorMetadata:
    """Metadata of a tensor in a sharded checkpoint that has not been read yet.

    Attributes:
        folder: The folder.
        name: Name of the tensor in the files.
        shape: Shape of the full tensor.
        dtype: Its dtype.
        dims: The dimension along which each mesh axis sharded it when it was saved; None if it was not sharded.
        checked: Whether the checksums of its files were verified.
        metadata: The metadata of the folder, if it was read.

    >>> TensorMetadata(Path("ep1"), "weight", (2,), torch.float32).dims is None
    True
    """

    folder: Path
    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype
    dims: tuple[int | None, ...] | None = None
    checked: bool = field(default=False, compare=False)
    metadata: Any = field(default=None, compare=False, repr=False)


def is_sharded_checkpoint(path: Path | str) -> bool:
    """Return whether a path is a folder in the format of ``torch.distributed.checkpoint``.

    Args:
        path: The path.

    >>> is_sharded_checkpoint(tmp_path)
    False
    """
    return (Path(path) / METADATA).is_file()


def open_sharded(folder: Path | str, *, all_ranks: bool = False) -> dict[str, Any]:
    """Return the content of a sharded checkpoint, with a :class:`TensorMetadata` for each tensor in the files.

    A folder that another program has written is read as weights: those below ``"state"`` and ``"model"``, below
    ``"model"``, or all tensors.

    Args:
        folder: The folder.
        all_ranks: Whether all ranks call this and split the verification of checksums.

    Raises:
        FileNotFoundError: There is no checkpoint.
        DamagedCheckpointError: It is corrupted.
        UnsafeCheckpointError: Reading it would run code.

    >>> from composer.checkpoint.sharded_writer import shard_checkpoint, write_sharded
    >>> write_sharded(shard_checkpoint({"state": {"model": {"weight": torch.ones(2)}}}), tmp_path / "ep1")
    >>> open_sharded(tmp_path / "ep1")["state"]["model"]["weight"].shape
    (2,)
    """
    folder = Path(folder).resolve()
    if not is_sharded_checkpoint(folder) and not (folder / MANIFEST).is_file():
        raise FileNotFoundError(f"There is no checkpoint in {str(folder)!r}: it has no file {METADATA!r}.")
    if not (folder / MANIFEST).is_file():
        if os.path.lexists(folder / MANIFEST):  # else it would be read as weights of another program
            raise DamagedCheckpointError(
                f"{str(folder)!r} is damaged: {MANIFEST!r} is not a file. Load an earlier one."
            )
        return {"state": {"model": _foreign_weights(folder)}}
    rest = verify_sharded(folder, all_ranks=all_ranks)
    if not is_sharded_checkpoint(folder):
        if "engine" not in rest["content"]:
            raise DamagedCheckpointError(f"{str(folder)!r} is damaged: {METADATA!r} is missing. Load an earlier one.")
        return {**rest["content"], "folder": str(folder)}  # for the engine that wrote it
    metadata = read_metadata(folder)

    def stored(node: Any) -> Any:
        if not isinstance(node, dict) or TENSOR_KEY not in node:
            return node
        with damage_of(repr(str(folder / MANIFEST)), "its content"):
            name, dims = node[TENSOR_KEY], node["dims"]
            if type(name) is not str or not (dims is None or set(map(type, dims)) <= {int, type(None)}):
                raise ValueError(f"it has {node!r} in place of a tensor")
        return _stored_tensor(folder, name, metadata, dims, rest["files"])

    return map_nodes(rest["content"], stored)


def read_sharded(folder: Path | str) -> dict[str, Any]:
    """Read a sharded checkpoint with full tensors in host memory.

    Args:
        folder: The folder.

    Raises:
        FileNotFoundError: There is no checkpoint.
        DamagedCheckpointError: It is corrupted.
        UnsafeCheckpointError: Reading it would run code.

    >>> from composer.checkpoint.sharded_writer import shard_checkpoint, write_sharded
    >>> write_sharded(shard_checkpoint({"state": {"model": {"weight": torch.ones(2)}}}), tmp_path / "ep1")
    >>> read_sharded(tmp_path / "ep1")
    {'state': {'model': {'weight': tensor([1., 1.])}}}
    """
    return load_tensors(open_sharded(folder))


def load_tensors(tree: Any, layout: Layout | None = None, planner: Any = None) -> Any:
    """Return nested containers with each :class:`TensorMetadata` and :class:`.BroadcastTensor` loaded.

    If there are any of the latter, all ranks must call this.

    Args:
        tree: The containers: a checkpoint or entries of one.
        layout: How the tensors are sharded; None loads full tensors into host memory.
        planner: A ``LoadPlanner`` that decides what is read, or None.

    Raises:
        DamagedCheckpointError: A file does not match the metadata.

    >>> load_tensors({"weight": BroadcastTensor((1,), torch.float32, torch.ones(1)), "epoch": 1})
    {'weight': tensor([1.]), 'epoch': 1}
    """
    made: dict[int, Tensor] = {}
    read: dict[str, Tensor] = {}
    folder: Path | None = None
    checked, metadata = False, None
    for path, one in pending_tensors(tree):
        if isinstance(one, BroadcastTensor):
            full = one.receive()
            made[id(one)] = full if layout is None else layout.shard(full, path)
            continue
        folder, checked, metadata = one.folder, one.checked, one.metadata
        if one.name not in read:
            empty = torch.empty(one.shape, dtype=one.dtype)
            read[one.name] = empty if layout is None else layout.empty(path, one.shape, one.dtype, one.dims)
        made[id(one)] = read[one.name]
    if folder is not None:
        read_into(read, folder, planner, checked=checked, metadata=metadata)
    return map_nodes(tree, lambda node: made.get(id(node), node)) if made else tree


def verify_sharded(folder: Path, *, all_ranks: bool = False) -> dict[str, Any]:
    """Verify the checksums of the files in a folder, and return the manifest.

    Args:
        folder: The folder.
        all_ranks: Whether all ranks call this. The ranks of a node split the work, and all ranks raise.

    Returns:
        The checkpoint without its tensors as ``"content"``, and size and checksum of the other files as ``"files"``.

    Raises:
        DamagedCheckpointError: A file is missing or differs.
        UnsafeCheckpointError: Reading it would run code.

    >>> from composer.checkpoint.sharded_writer import shard_checkpoint, write_sharded
    >>> write_sharded(shard_checkpoint({"state": {"model": {"weight": torch.ones(2)}}}), tmp_path / "ep1")
    >>> sorted(verify_sharded(tmp_path / "ep1")["files"])
    ['.metadata', '__0_0.distcp']
    """
    rest: dict[str, Any] = {}
    failure: Exception | None = None
    damaged: list[str] = []
    try:
        rest = file_format.read(folder / MANIFEST)
        with damage_of(repr(str(folder / MANIFEST)), "its list of files"):
            files = _checked_files(folder, rest)
        first, step = (dist.get_local_rank(), dist.get_local_world_size()) if all_ranks else (0, 1)
        damaged = [text for name in sorted(files)[first::step] if (text := _damage(folder / name, files[name]))]
    except Exception as error:
        failure, damaged = error, [str(error)]
    everywhere = dist.all_gather_object(damaged) if all_ranks else [damaged]
    if failure is not None:
        raise failure
    if messages := sorted({text for texts in everywhere for text in texts}):
        raise DamagedCheckpointError(f"{str(folder)!r} is damaged: {'; '.join(messages)}. Load an earlier checkpoint.")
    return rest


def pending_tensors(
    node: Any, path: tuple[Any, ...] = ()
) -> Iterator[tuple[tuple[Any, ...], TensorMetadata | BroadcastTensor]]:
    """Iterate over the tensors that are not loaded yet, with their keys.

    Args:
        node: A checkpoint or entries of one.
        path: Prefix of the keys.

    >>> list(pending_tensors({"weight": torch.ones(1)}))
    []
    """
    if isinstance(node, _PENDING):
        yield path, node
        return
    entries: Iterable[tuple[Any, Any]] = ()
    if isinstance(node, dict):
        entries = cast("dict[Any, Any]", node).items()
    elif isinstance(node, (list, tuple)):
        entries = enumerate(cast("list[Any]", node))
    for key, value in entries:
        if isinstance(value, _HOLDERS):  # few are: the states of random generators have more than a thousand numbers
            yield from pending_tensors(value, (*path, key))


def _checked_files(folder: Path, rest: dict[str, Any]) -> dict[str, dict[str, int]]:
    """Return size and checksum of the files that a folder should have, after validating the list."""
    files = rest.get("files")
    if not isinstance(rest.get("content"), dict) or not isinstance(files, dict):
        raise ValueError("it has no list of files, or no content")
    for name, written in cast("dict[Any, Any]", files).items():
        if type(name) is not str or Path(name).name != name:
            raise ValueError(f"{name!r} is not a plain file name, and is not followed")
        if type(written) is not dict or {key: type(value) for key, value in written.items()} != _WRITTEN:
            raise ValueError(f"it has no size and checksum of {name!r}")
    if is_sharded_checkpoint(folder) and METADATA not in files:
        raise ValueError(f"{METADATA!r} is not among them")
    return cast("dict[str, dict[str, int]]", files)


_WRITTEN = {"size": int, "crc32": int}

_PENDING = (TensorMetadata, BroadcastTensor)
_HOLDERS = (*_PENDING, dict, list, tuple)


def _damage(path: Path, written: Mapping[str, int]) -> str | None:
    if not path.is_file():
        return f"{path.name!r} is missing"
    if path.stat().st_size != written["size"]:
        return f"{path.name!r} has {path.stat().st_size} bytes of {written['size']}"
    if checksum(path) != written:
        return f"the checksum of {path.name!r} does not match"
    return None


def _stored_tensor(
    folder: Path, name: str, metadata: Any, dims: Any = None, files: Mapping[str, Any] | None = None
) -> TensorMetadata:
    one = metadata.state_dict_metadata.get(name)
    if not hasattr(one, "size"):
        raise DamagedCheckpointError(f"{str(folder)!r} is damaged: it lacks the tensor {name!r}.")
    check_tensor_files(folder, name, metadata, None if files is None else tuple(files))
    dims = None if dims is None else tuple(dims)
    return TensorMetadata(folder, name, tuple(one.size), one.properties.dtype, dims, files is not None, metadata)


def _foreign_weights(folder: Path) -> dict[str, Any]:
    """Return the weights in a folder that another program has written."""
    metadata = read_metadata(folder)
    described = [name for name, one in metadata.state_dict_metadata.items() if hasattr(one, "size")]
    paths: dict[str, Any] = metadata.planner_data or {}
    for above in (("state", "model"), ("model",), ("app", "model")):
        # By the recorded keys if there are any, since a name may contain dots.
        found = {
            ".".join(map(str, paths[name][len(above) :])): _stored_tensor(folder, name, metadata)
            for name in described
            if len(paths.get(name, ())) > len(above) and tuple(paths[name][: len(above)]) == above
        }
        if found:
            return found
    return {name: _stored_tensor(folder, name, metadata) for name in described}
