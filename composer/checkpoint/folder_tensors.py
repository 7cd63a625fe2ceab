"""Read tensors from the files of a sharded checkpoint (``torch.distributed.checkpoint``) by a load plan.

torch's own reader unpickles every entry that the metadata lists as bytes, and verifies no checksums. This reader reads
only tensors, each of the dtype and shape in the metadata, and never reads bytes, also for a custom ``LoadPlanner``.
"""

from __future__ import annotations

import importlib
import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from composer.checkpoint.file_format import UnsafeCheckpointError, damage_of, read_tensor
from composer.checkpoint.folder_metadata import METADATA, read_metadata

__all__ = ["follow", "read_into"]


def read_into(
    tensors: Mapping[str, Tensor], folder: Path, planner: Any = None, *, checked: bool = False, metadata: Any = None
) -> None:
    """Load tensors in place from the shards in the files.

    Args:
        tensors: The target tensors by their names in the checkpoint; sharded or not.
        folder: The folder.
        planner: A ``LoadPlanner`` that decides what is read, or None.
        checked: Whether the checksums of the files were verified.
        metadata: What :func:`.read_metadata` returned; None reads it.

    Raises:
        DamagedCheckpointError: A file does not match the metadata.
        UnsafeCheckpointError: The plan reads something other than tensors, which would have to be unpickled.

    >>> from composer.checkpoint.sharded_writer import shard_checkpoint, write_sharded
    >>> write_sharded(shard_checkpoint({"state": {"model": {"weight": torch.ones(2)}}}), tmp_path / "ep1")
    >>> weight = torch.zeros(2)
    >>> read_into({"state.model.weight": weight}, tmp_path / "ep1")
    >>> weight
    tensor([1., 1.])
    """
    metadata = read_metadata(folder) if metadata is None else metadata
    if planner is not None:
        follow(_plan(tensors, metadata, planner), metadata, folder, planner, checked=checked)
        return
    planner = importlib.import_module("torch.distributed.checkpoint").DefaultLoadPlanner()
    with damage_of(repr(str(folder / METADATA)), "its description of the tensors"):
        items = _plan(tensors, metadata, planner)
    follow(items, metadata, folder, planner, checked=checked)


def _plan(tensors: Mapping[str, Tensor], metadata: Any, planner: Any) -> list[Any]:
    """Return the items to read; each rank plans for itself, so that no rank waits for another."""
    planner.set_up_planner(dict(tensors), metadata, is_coordinator=True)
    (plan,) = planner.create_global_plan([planner.create_local_plan()])
    return planner.finish_plan(plan).items


def follow(items: Sequence[Any], metadata: Any, folder: Path, planner: Any, *, checked: bool = False) -> None:
    """Read the tensors of a load plan.

    Args:
        items: The items of a ``LoadPlan``.
        metadata: What :func:`.read_metadata` returned.
        folder: The folder.
        planner: The ``LoadPlanner``, which provides the target tensors.
        checked: Whether the checksums of the files were verified.

    Raises:
        DamagedCheckpointError: A file does not match the metadata.
        UnsafeCheckpointError: An item is not a tensor, and would have to be unpickled.

    >>> follow([], None, tmp_path, None)
    """
    item_types: Any = importlib.import_module("torch.distributed.checkpoint.planner").LoadItemType
    for item in items:
        name = item.storage_index.fqn
        if item.type is not item_types.TENSOR:
            raise UnsafeCheckpointError(f"{name!r} in {str(folder)!r} is not a tensor, and reading it could run code.")
        with damage_of(repr(str(folder)), f"the tensor {name!r}"):
            read = _shard(item.storage_index, metadata, folder, checked)
            for dim, (begin, length) in enumerate(zip(item.storage_offsets, item.lengths, strict=True)):
                read = read.narrow(dim, begin, length)
        target = planner.resolve_tensor(item).detach()
        if target.shape != read.shape:
            raise ValueError(f"{name!r} has another shape than the tensor it is loaded into.")
        target.copy_(read)
        planner.commit_tensor(item, target)


def _shard(index: Any, metadata: Any, folder: Path, checked: bool) -> Tensor:
    info = metadata.storage_data[index]
    described = metadata.state_dict_metadata[index.fqn]
    with (folder / info.relative_path).open("rb") as file:
        file.seek(info.offset)
        content = io.BytesIO(file.read(info.length))
    tensor = read_tensor(content, f"{index.fqn!r} in {str(folder / info.relative_path)!r}", checked=checked)
    sizes = next(shard.sizes for shard in described.chunks if shard.offsets == index.offset)
    if tensor.dtype != described.properties.dtype or tensor.shape != torch.Size(sizes):
        raise ValueError(f"its shard in {info.relative_path!r} has another dtype or shape than in the metadata")
    return tensor
