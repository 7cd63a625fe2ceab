"""Malicious checkpoint folders, for tests of the readers."""

from __future__ import annotations

import io
import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.filesystem import _StorageInfo
from torch.distributed.checkpoint.metadata import (
    BytesStorageMetadata,
    ChunkStorageMetadata,
    MetadataIndex,
    TensorProperties,
)


class _Runs:
    def __init__(self, trace: Path) -> None:
        self.trace = trace

    def __reduce__(self) -> Any:
        return os.system, (f"touch {self.trace}",)


def foreign_folder(folder: Path) -> Any:
    """A folder as plain torch writes it, with a tensor of eight elements and a smaller one; returns its description."""
    content = {"model": {"w": torch.arange(8.0), "b": torch.ones(3)}}
    dcp.save(content, storage_writer=dcp.FileSystemWriter(folder))
    return pickle.loads((folder / ".metadata").read_bytes())


def _shards(*blocks: tuple[int, int]) -> Callable[[Any, Path], None]:
    def change(metadata: Any, folder: Path) -> None:
        one = metadata.state_dict_metadata["model.w"]
        one.chunks = [ChunkStorageMetadata(torch.Size([at]), torch.Size([length])) for at, length in blocks]
        place = metadata.storage_data[MetadataIndex("model.w", torch.Size([0]))]
        for at, _ in blocks:
            metadata.storage_data[MetadataIndex("model.w", torch.Size([at]))] = place

    return change


def _at(**fields: Any) -> Callable[[Any, Path], None]:
    def change(metadata: Any, folder: Path) -> None:
        for place in metadata.storage_data.values():
            vars(place).update(fields)

    return change


def _of_tensor(**fields: Any) -> Callable[[Any, Path], None]:
    def change(metadata: Any, folder: Path) -> None:
        vars(metadata.state_dict_metadata["model.w"]).update(fields)

    return change


def _bytes_for_a_tensor(metadata: Any, folder: Path) -> None:
    evil = io.BytesIO()
    torch.save(_Runs(folder / "trace"), evil)
    (folder / "evil.distcp").write_bytes(evil.getvalue())
    entry: Any = BytesStorageMetadata()
    entry.size, entry.properties, entry.chunks = torch.Size([8]), TensorProperties(), []
    metadata.state_dict_metadata["model.w"] = entry
    metadata.storage_data[MetadataIndex("model.w")] = _StorageInfo("evil.distcp", 0, len(evil.getvalue()))


def _code_for_a_tensor(metadata: Any, folder: Path) -> None:
    evil = io.BytesIO()
    torch.save(_Runs(folder / "trace"), evil)
    (folder / "evil.distcp").write_bytes(evil.getvalue() + bytes(100))
    place = metadata.storage_data[MetadataIndex("model.w", torch.Size([0]))]
    place.relative_path, place.offset, place.length = "evil.distcp", 0, len(evil.getvalue())


def _linked(metadata: Any, folder: Path) -> None:
    outside = folder.parent / "outside.distcp"
    (folder / "__0_0.distcp").rename(outside)
    (folder / "__0_0.distcp").symlink_to(outside)


def _no_file(metadata: Any, folder: Path) -> None:
    (folder / "__0_0.distcp").unlink()


def _no_place(metadata: Any, folder: Path) -> None:
    del metadata.storage_data[MetadataIndex("model.w", torch.Size([0]))]


def _huge(metadata: Any, folder: Path) -> None:
    one = metadata.state_dict_metadata["model.w"]
    one.size = one.chunks[0].sizes = torch.Size([10**14])


def _swapped(metadata: Any, folder: Path) -> None:
    """The smaller tensor in place of the other."""
    places = metadata.storage_data
    w, b = MetadataIndex("model.w", torch.Size([0])), MetadataIndex("model.b", torch.Size([0]))
    places[w], places[b] = places[b], places[w]


def _renamed(metadata: Any, folder: Path) -> None:
    metadata.planner_data["model.w"] = ("model", "b")


def _runs(metadata: Any, folder: Path) -> None:
    metadata.planner_data = _Runs(folder / "trace")


def _attribute(metadata: Any, folder: Path) -> None:
    metadata.more = 1


FOLDERS: dict[str, Callable[[Any, Path], None]] = {
    "bytes for a tensor": _bytes_for_a_tensor,
    "code in the file of a tensor": _code_for_a_tensor,
    "code in the description": _runs,
    "a path above": _at(relative_path="../outside.distcp"),
    "an absolute path": _at(relative_path="/etc/passwd"),
    "a path of Windows": _at(relative_path="..\\outside.distcp"),
    "a path below": _at(relative_path="sub/__0_0.distcp"),
    "no path": _at(relative_path=""),
    "the folder above": _at(relative_path=".."),
    "a path that is no text": _at(relative_path=1),
    "a link that leads out": _linked,
    "no file": _no_file,
    "no place": _no_place,
    "a place beyond the file": _at(offset=1 << 40),
    "a negative place": _at(offset=-1),
    "a length beyond the file": _at(length=1 << 40),
    "no length": _at(length=0),
    "transformed": _at(transform_descriptors=["zstd"]),
    "no shards": _shards(),
    "a gap": _shards((0, 4), (5, 3)),
    "an overlap": _shards((0, 5), (4, 4)),
    "half of it": _shards((0, 4)),
    "beyond the end": _shards((0, 9)),
    "two halves that are one": _shards((0, 4), (4, 4)),
    "shards that are none": _of_tensor(chunks=[1]),
    "shards of a type of their own": _of_tensor(chunks=((0,), (8,))),
    "a negative size": _of_tensor(size=(-8,)),
    "a size that is a bool": _of_tensor(size=(True,)),
    "a size with a thousand dimensions": _of_tensor(size=(1,) * 1000),
    "an attribute that is not declared": _of_tensor(more=1),
    "another dtype": _of_tensor(properties=TensorProperties(dtype=torch.int32)),
    "a larger dtype": _of_tensor(properties=TensorProperties(dtype=torch.complex128)),
    "properties that are none": _of_tensor(properties=None),
    "a huge tensor": _huge,
    "two tensors exchanged": _swapped,
    "another name": _renamed,
    "an attribute of the whole": _attribute,
}
"""What is changed in the description of a folder of plain torch."""
