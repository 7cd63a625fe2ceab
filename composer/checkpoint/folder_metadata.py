"""Read the ``.metadata`` file of a sharded checkpoint (``torch.distributed.checkpoint``) without unpickling it.

The file is a pickle of torch dataclasses. It is parsed into inert nodes, from which the dataclasses are constructed
field by field, each of its exact type: the content may be wrong, but can never be an arbitrary object. Entries that are
not tensors (pickled bytes, as other programs save them) are listed in the metadata, but never read.
"""

from __future__ import annotations

import importlib
import itertools
import math
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import torch

from composer.checkpoint.file_format import UnsafeCheckpointError, damage_of
from composer.checkpoint.pickle_nodes import Call, Named
from composer.checkpoint.pickle_outline import CodeError, outline

__all__ = ["METADATA", "check_tensor_files", "read_metadata", "tiles"]

METADATA = ".metadata"
"""The name of the file that holds the metadata of the tensors in a sharded checkpoint."""

_CLASSES = "torch.distributed.checkpoint.metadata"
_STORAGE_INFO = "torch.distributed.checkpoint.filesystem._StorageInfo"
_MOST = 1 << 60
_MOST_DIMS = 64
_MOST_SHARDED_DIMS = 8
# All names that such files contain, in any release of torch; the values of the last three are ignored.
_KNOWN = frozenset(
    {
        *(f"{_CLASSES}.{name}" for name in ("Metadata", "TensorStorageMetadata", "BytesStorageMetadata")),
        *(f"{_CLASSES}.{name}" for name in ("ChunkStorageMetadata", "TensorProperties", "MetadataIndex")),
        _STORAGE_INFO,
        "torch.Size",
        "collections.OrderedDict",
        f"{_CLASSES}._MEM_FORMAT_ENCODING",
        f"{_CLASSES}.StorageMeta",
        "torch.serialization._get_layout",
    }
)


def read_metadata(folder: Path) -> Any:
    """Return the metadata of a sharded checkpoint, a torch ``Metadata``, without running code from it.

    Args:
        folder: The folder.

    Raises:
        DamagedCheckpointError: The file cannot be read, or contradicts itself.
        UnsafeCheckpointError: Reading it would run code.

    >>> from composer.checkpoint.sharded_writer import shard_checkpoint, write_sharded
    >>> write_sharded(shard_checkpoint({"state": {"model": {"weight": torch.ones(2)}}}), tmp_path / "ep1")
    >>> list(read_metadata(tmp_path / "ep1").state_dict_metadata)
    ['state.model.weight']
    """
    path = folder / METADATA
    with damage_of(repr(str(path)), "its description of the tensors"):
        if path.stat().st_size > _MOST_BYTES:
            raise ValueError(f"it has {path.stat().st_size} bytes")
        content = path.read_bytes()
        described = outline(content)
        for name in sorted(described.names):
            if name not in _KNOWN and not _is_path(name) and not _is_dtype(name):
                raise UnsafeCheckpointError(f"{str(path)!r} describes its tensors by {name!r}, which could run code.")
        if described.end != len(content):
            raise ValueError(f"it ends {len(content) - described.end} bytes before its end")
        return _metadata(described.root)


def check_tensor_files(folder: Path, name: str, metadata: Any, written: Sequence[str] | None = None) -> None:
    """Check that the files of a sharded checkpoint can hold a tensor, before memory is allocated for it.

    Args:
        folder: The folder.
        name: Name of the tensor.
        metadata: What :func:`read_metadata` returned.
        written: The files whose checksums were verified; None if the folder has no checksums.

    Raises:
        DamagedCheckpointError: A file is missing, is a link that leads out of the folder, or is too short.

    >>> from composer.checkpoint.sharded_writer import shard_checkpoint, write_sharded
    >>> write_sharded(shard_checkpoint({"state": {"model": {"weight": torch.ones(2)}}}), tmp_path / "ep1")
    >>> check_tensor_files(tmp_path / "ep1", "state.model.weight", read_metadata(tmp_path / "ep1"))
    """
    one = metadata.state_dict_metadata[name]
    with damage_of(repr(str(folder)), f"the tensor {name!r}"):
        for shard in one.chunks:
            info = metadata.storage_data.get(_classes().MetadataIndex(name, shard.offsets))
            size = shard.sizes.numel() * one.properties.dtype.itemsize
            if info is None:
                if size:
                    raise ValueError(f"no file is recorded for its shard at {tuple(shard.offsets)}")
                continue
            file = folder / info.relative_path
            if written is not None and info.relative_path not in written:
                raise ValueError(f"it is in {info.relative_path!r}, which has no checksum")
            if not file.is_file():
                raise ValueError(f"{info.relative_path!r} is missing")
            if file.resolve().parent != folder.resolve():
                raise ValueError(f"{info.relative_path!r} is a link that leads out of the folder")
            if info.offset + info.length > file.stat().st_size or info.length < size:
                raise ValueError(f"{info.relative_path!r} does not hold the {size} bytes of it that it should")


def tiles(shards: Sequence[tuple[tuple[int, ...], tuple[int, ...]]], shape: tuple[int, ...]) -> bool:
    """Return whether blocks tile an array exactly: none is outside, none overlap, and no element is left out.

    The number of blocks over each element is determined by its mixed differences, which are nonzero only at the corners
    of blocks, with a sign each. So it is one everywhere if and only if the signed corners of all blocks sum to those of
    the array. The time is linear in the number of corners.

    Args:
        shards: Offsets and sizes of each block.
        shape: Shape of the array.

    Raises:
        ValueError: The blocks shard more dimensions than a device mesh could.

    >>> tiles([((0, 0), (1, 4)), ((1, 0), (2, 4))], (3, 4))
    True
    >>> tiles([((0, 0), (2, 4)), ((1, 0), (2, 4))], (3, 4))
    False
    """
    for offsets, sizes in shards:
        if len(offsets) != len(shape) or len(sizes) != len(shape):
            return False
        if any(begin + size > length for begin, size, length in zip(offsets, sizes, shape, strict=True)):
            return False
    if 0 in shape:
        return True
    # Some writers list a replicated block once for each rank.
    blocks = {block for block in shards if 0 not in block[1]}
    dims = [dim for dim, length in enumerate(shape) if any(sizes[dim] != length for _, sizes in blocks)]
    if len(dims) > _MOST_SHARDED_DIMS:
        raise ValueError(f"its shards split {len(dims)} dimensions")
    corners: Counter[tuple[int, ...]] = Counter()
    for sign, block in itertools.chain(((1, one) for one in blocks), [(-1, ((0,) * len(shape), shape))]):
        for ends in itertools.product((0, 1), repeat=len(dims)):
            at = tuple(block[0][dim] + end * block[1][dim] for dim, end in zip(dims, ends, strict=True))
            corners[at] += sign if sum(ends) % 2 == 0 else -sign
    return not any(corners.values())


def _classes() -> Any:
    return importlib.import_module(_CLASSES)


def _metadata(root: Any) -> Any:
    fields = _fields(
        root, "Metadata", {"state_dict_metadata"}, {"planner_data", "storage_data", "storage_meta", "version"}
    )
    described, stored = fields["state_dict_metadata"], fields.get("storage_data")
    if type(described) is not dict or type(stored) is not dict:
        raise ValueError("it has no list of tensors and files")
    tensors = {_text(name): _entry(_text(name), one) for name, one in cast("dict[Any, Any]", described).items()}
    storage_data = dict(map(_storage_entry, cast("dict[Any, Any]", stored).items()))
    return _classes().Metadata(tensors, _paths(fields.get("planner_data")), storage_data)


def _entry(name: str, node: Any) -> Any:
    classes = _classes()
    if isinstance(node, Call) and node.name == f"{_CLASSES}.BytesStorageMetadata":
        if node.args or node.items or any(node.states):
            raise CodeError(f"its entry {name!r} passes pickled bytes for something else")
        return classes.BytesStorageMetadata()
    fields = _fields(node, "TensorStorageMetadata", {"properties", "size", "chunks"})
    size, shards = _size(fields["size"]), fields["chunks"]
    if type(shards) is not list:
        raise ValueError(f"the tensor {name!r} has no shards")
    made: list[Any] = []
    for shard in cast("list[Any]", shards):
        of_shard = _fields(shard, "ChunkStorageMetadata", {"offsets", "sizes"})
        made.append(classes.ChunkStorageMetadata(_size(of_shard["offsets"]), _size(of_shard["sizes"])))
    if not tiles([(tuple(shard.offsets), tuple(shard.sizes)) for shard in made], tuple(size)):
        raise ValueError(f"the shards of the tensor {name!r} do not make up its shape {tuple(size)}")
    return classes.TensorStorageMetadata(_properties(name, fields["properties"]), size, made)


def _properties(name: str, node: Any) -> Any:
    """Return the properties that torch needs; the other fields are deprecated and unused."""
    if not isinstance(node, Call) or node.name != f"{_CLASSES}.TensorProperties" or node.args or len(node.states) != 1:
        raise ValueError(f"the tensor {name!r} has no properties")
    state = node.states[0]
    if type(state) is dict:
        state = (cast("dict[Any, Any]", state).get("dtype"),)
    dtype = state[0] if type(state) is tuple and state else None
    if not isinstance(dtype, Named) or not _is_dtype(dtype.name):
        raise ValueError(f"the tensor {name!r} has no dtype")
    return _classes().TensorProperties(dtype=getattr(torch, dtype.name.removeprefix("torch.")))


_MOST_BYTES = 1 << 30
"""Limit for the metadata file; a million shards take a tenth of it."""

_LONGEST_NAME = 255
"""Limit for a file name on current systems."""


def _storage_entry(item: tuple[Any, Any]) -> tuple[Any, Any]:
    of_index = _fields(item[0], "MetadataIndex", {"fqn"}, {"offset", "index"})
    of_info = _fields(item[1], _STORAGE_INFO, {"relative_path", "offset", "length"}, {"transform_descriptors"})
    name, offset, index = _text(of_index["fqn"]), of_index.get("offset"), of_index.get("index")
    path, begin, length = _text(of_info["relative_path"]), of_info["offset"], of_info["length"]
    if Path(path).name != path or path in ("", ".", "..") or {"\\", "\0"} & {*path} or len(path) > _LONGEST_NAME:
        raise ValueError(f"it takes {name!r} from {path!r}, which is not a plain file name, and is not followed")
    if of_info.get("transform_descriptors"):
        raise ValueError(f"{name!r} was transformed by an extension when it was saved, and cannot be read")
    if not _is_count(begin) or not _is_count(length) or not (index is None or _is_count(index)):
        raise ValueError(f"it has no valid position of {name!r} in {path!r}")
    filesystem: Any = importlib.import_module(_STORAGE_INFO.rpartition(".")[0])
    key = _classes().MetadataIndex(name, None if offset is None else _size(offset), index)
    return key, filesystem._StorageInfo(path, begin, length)


def _paths(node: Any) -> dict[str, tuple[str | int, ...]] | None:
    """Return the path of keys of each entry; data of other planners is ignored."""
    if type(node) is not dict:
        return None
    for name, path in cast("dict[Any, Any]", node).items():
        if type(path) is not tuple or any(type(key) not in (str, int) for key in cast("tuple[Any, ...]", path)):
            return None
        if ".".join(map(str, path)) != name:
            raise ValueError(f"the keys {path} are not those of {name!r}")
    return node


def _fields(node: Any, name: str, due: set[str], more: set[str] | None = None) -> dict[str, Any]:
    """Return the fields of an object of a class: all required ones, and none that are not declared."""
    name = name if "." in name else f"{_CLASSES}.{name}"
    if not isinstance(node, Call) or node.name != name or node.args or node.items or len(node.states) != 1:
        raise ValueError(f"it has another object in place of a {name.rpartition('.')[2]}")
    state = node.states[0]
    if type(state) is not dict or not due <= state.keys() <= due | (more or set()):
        raise ValueError(f"it has a {name.rpartition('.')[2]} with unexpected fields")
    return cast("dict[str, Any]", state)


def _size(node: Any) -> torch.Size:
    values = node.args[0] if isinstance(node, Call) and node.name == "torch.Size" and len(node.args) == 1 else node
    if type(values) is not tuple or len(values) > _MOST_DIMS or not all(map(_is_count, values)):
        raise ValueError("it has an invalid size")
    if 0 not in values and math.prod(values) >= _MOST:
        raise ValueError(f"it has a tensor of shape {values}")
    return torch.Size(values)


def _is_count(value: Any) -> bool:
    return type(value) is int and 0 <= value < _MOST


def _text(value: Any) -> str:
    if type(value) is not str:
        raise ValueError("it has a name that is not a string")
    return value


def _is_path(name: str) -> bool:
    """Return whether a name is a path class, perhaps of another operating system."""
    return name.startswith("pathlib.") and name.endswith("Path")


def _is_dtype(name: str) -> bool:
    return name.startswith("torch.") and isinstance(getattr(torch, name[6:], None), torch.dtype)
