"""Write sharded checkpoints: folders in the format of ``torch.distributed.checkpoint`` (DCP), one file per rank.

The tensors are in DCP files, which load on any number of ranks. Everything else is in one additional file, the
manifest, with the checksums of the other files; it is written last.
"""

from __future__ import annotations

import contextlib
import heapq
import importlib
import math
import os
import secrets
import shutil
import warnings
from collections.abc import Generator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import torch
import torch.distributed as torch_dist
from torch import Tensor

from composer import dist
from composer.checkpoint import file_format
from composer.checkpoint.checksum import fast_crc32
from composer.checkpoint.folder_conflicts import MANIFEST
from composer.checkpoint.on_all_ranks import gather_from_all_ranks, run_on_all_ranks
from composer.checkpoint.sharded_tensors import is_dtensor, shard_bounds
from composer.checkpoint.swap import swap_paths

if TYPE_CHECKING:
    from composer.core.checkpoint_folders import CheckpointEngine

__all__ = [
    "TENSOR_KEY",
    "ShardMetadata",
    "ShardedCheckpoint",
    "checksum",
    "files_of_rank",
    "shard_checkpoint",
    "write_sharded",
]

TENSOR_KEY = "tensor of torch.distributed.checkpoint"
"""The key of the placeholder for a tensor in the manifest."""

_ACTION = "write its shards of the checkpoint"


@dataclass(frozen=True)
class ShardMetadata:
    """Position of the local shard of a tensor in a checkpoint.

    Attributes:
        path: The keys of the tensor.
        shape: Shape of the full tensor.
        offsets: Offsets of the shard in the full tensor.

    >>> ShardMetadata(("state", "model", "weight"), (4, 2), (2, 0)).name
    'state.model.weight'
    """

    path: tuple[str, ...]
    shape: tuple[int, ...]
    offsets: tuple[int, ...]

    @property
    def name(self) -> str:
        """The name of the tensor in the files."""
        return ".".join(self.path)


@dataclass(frozen=True)
class ShardedCheckpoint:
    """The content of a checkpoint that this rank writes.

    Attributes:
        rest: Everything except the tensors, with placeholders in their place.
        tensors: The local shards by name; not copies.
        metadata: Position of each shard.

    >>> shard_checkpoint({"state": {"model": {"weight": torch.ones(2)}}}).rest["state"]["model"]["weight"]
    {'tensor of torch.distributed.checkpoint': 'state.model.weight', 'dims': None}
    """

    rest: dict[str, Any]
    tensors: dict[str, Tensor]
    metadata: dict[str, ShardMetadata]


def shard_checkpoint(content: dict[str, Any]) -> ShardedCheckpoint:
    """Split a checkpoint into local shards of its weights and ``DTensor`` values, and everything else.

    Args:
        content: As :func:`.collect` returns it.

    >>> checkpoint = shard_checkpoint({"state": {"model": {"weight": torch.ones(2)}, "epoch": 1}})
    >>> checkpoint.tensors, checkpoint.metadata["state.model.weight"].shape
    ({'state.model.weight': tensor([1., 1.])}, (2,))
    """
    is_first = dist.get_global_rank() == 0
    checkpoint = ShardedCheckpoint({}, {}, {})
    names: dict[Any, str] = {}
    replicas = _Replicas()

    def walk(node: Any, path: tuple[str, ...]) -> Any:
        if isinstance(node, dict):
            return {key: walk(value, (*path, str(key))) for key, value in cast("dict[Any, Any]", node).items()}
        if isinstance(node, (list, tuple)):
            values = [walk(value, (*path, str(at))) for at, value in enumerate(cast("list[Any]", node))]
            return values if isinstance(node, list) else tuple(values)
        if not isinstance(node, Tensor) or not (is_dtensor(node) or path[:2] == ("state", "model")):
            return node
        held: Any = node.detach()
        metadata = ShardMetadata(path, tuple(node.shape), shard_bounds(held)[0])
        dims = [getattr(one, "dim", None) for one in held.placements] if is_dtensor(held) else None
        local: Tensor = held.to_local() if dims is not None else held
        # Rank 0 writes tensors that are not sharded. A rank may have an empty shard.
        is_mine = is_first if dims is None else replicas.writes_next(held)
        if is_mine and (dims is None or local.numel()):
            checkpoint.tensors[metadata.name], checkpoint.metadata[metadata.name] = local, metadata
        # Tied weights are written under each name for other programs; this library reads the first.
        memory = (local.device, local.dtype, local.data_ptr(), local.shape, local.stride(), node.shape)
        return {TENSOR_KEY: names.setdefault(memory, metadata.name) if local.numel() else metadata.name, "dims": dims}

    with torch.no_grad():
        checkpoint.rest.update(walk(content, ()))
    return checkpoint


def write_sharded(
    checkpoint: ShardedCheckpoint,
    folder: Path,
    *,
    per_rank_folder: bool = False,
    group: torch_dist.ProcessGroup | None = None,
    planner: Any = None,
    engine: CheckpointEngine | None = None,
) -> None:
    """Write a checkpoint to a folder, under a temporary name until it is complete; all ranks must call this.

    A crash at any time leaves other checkpoints unchanged.

    Args:
        checkpoint: What this rank writes.
        folder: The destination; an existing checkpoint is replaced.
        per_rank_folder: Whether each rank writes to a separate folder (such as a local staging folder), rather than to
            a shared one.
        group: Process group for the collectives; None is the default group.
        planner: A ``SavePlanner``; None is the default, which writes each tensor once.
        engine: Writes its own tensors in its own format (DeepSpeed); None if the tensors are in the checkpoint.

    Raises:
        OSError: A rank could not write its shards; all ranks raise.

    >>> content = {"state": {"model": {"weight": torch.ones(2)}, "epoch": 1}}
    >>> write_sharded(shard_checkpoint(content), tmp_path / "ep1")
    >>> sorted(path.name for path in (tmp_path / "ep1").iterdir())
    ['.metadata', '__0_0.distcp', 'composer.pt']
    """
    is_first = dist.get_global_rank() == 0
    token = [secrets.token_hex(4)]
    dist.broadcast_object_list(token, group=group)
    begun = folder.with_name(f".{folder.name}.{token[0]}.tmp")

    def described() -> dict[str, Any]:
        return {name: checksum(begun / name) for name in files_of_rank(begun)}

    def completed() -> None:
        if is_first:
            files = {name: entry for table in tables for name, entry in table.items()}
            file_format.write({"content": checkpoint.rest, "files": files}, begun / MANIFEST)
        if is_first or per_rank_folder:
            _rename(begun, folder)

    try:
        run_on_all_ranks(lambda: begun.mkdir(parents=True, exist_ok=True), _ACTION, group)
        if engine is None:
            _write_tensors(checkpoint, begun, group, planner)
        else:
            engine.save(begun)
        tables = gather_from_all_ranks(described, _ACTION, group)
        run_on_all_ranks(completed, _ACTION, group)
    except BaseException:
        if is_first or per_rank_folder:
            shutil.rmtree(begun, ignore_errors=True)
        raise


def files_of_rank(folder: Path) -> list[str]:
    """Return the names of the files in a folder that this rank has written, the manifest last.

    Args:
        folder: The folder.

    >>> (tmp_path / "__0_0.distcp").touch(), (tmp_path / "__1_0.distcp").touch()
    (None, None)
    >>> files_of_rank(tmp_path)
    ['__0_0.distcp']
    """
    rank = dist.get_global_rank()
    patterns = [f"__{rank}_*", f"*zero_pp_rank_{rank}_*"]
    if rank == 0:
        patterns += ["mp_rank_*", "zero_to_*.py", "latest"]
    found = sorted(path.name for pattern in patterns for path in folder.glob(pattern))
    return [*found, *(name for name in (".metadata", MANIFEST) if rank == 0 and (folder / name).is_file())]


def checksum(path: Path) -> dict[str, int]:
    """Return the size and the CRC-32 of a file.

    Args:
        path: The file.

    >>> _ = (tmp_path / "a").write_bytes(b"weights")
    >>> checksum(tmp_path / "a")
    {'size': 7, 'crc32': 449999704}
    """
    size, value = 0, 0
    with path.open("rb") as file:
        while block := file.read(1 << 22):
            size, value = size + len(block), fast_crc32(block, value)
    return {"size": size, "crc32": value}


def _write_tensors(checkpoint: ShardedCheckpoint, folder: Path, group: Any, planner: Any) -> None:
    dcp: Any = importlib.import_module("torch.distributed.checkpoint")
    nested: dict[str, Any] = {}
    for name, tensor in checkpoint.tensors.items():
        *above, last = checkpoint.metadata[name].path
        node = nested
        for key in above:
            node = node.setdefault(key, {})
        node[last] = _as_shard(tensor, checkpoint.metadata[name])
    with _quiet():
        try:
            dcp.save(nested, storage_writer=dcp.FileSystemWriter(folder), planner=planner, process_group=group)
        except dcp.CheckpointException as failure:
            # Users do not catch CheckpointException, and its message says little about the cause.
            rank, (error, _) = next(iter(failure.failures.items()))
            error.add_note(f"This happened on rank {rank}.")
            raise error from None


class _Shard(Tensor):
    """A local shard with its offsets, for ``torch.distributed.checkpoint``; on any device, without a device mesh.

    Attributes:
        full_shape: Shape of the full tensor.
        offsets: Offsets of the shard in the full tensor.
    """

    full_shape: torch.Size
    offsets: torch.Size

    # The names of these methods are a protocol of torch, whose module takes long to import.
    def __create_chunk_list__(self) -> list[Any]:
        from torch.distributed.checkpoint.metadata import ChunkStorageMetadata

        return [ChunkStorageMetadata(self.offsets, self.shape)]

    def __create_write_items__(self, fqn: str, object: _Shard) -> list[Any]:
        from torch.distributed.checkpoint.metadata import MetadataIndex, TensorProperties
        from torch.distributed.checkpoint.planner import TensorWriteData, WriteItem, WriteItemType

        data = TensorWriteData(
            chunk=self.__create_chunk_list__()[0],
            properties=TensorProperties(dtype=self.dtype),
            size=self.full_shape,
        )
        return [WriteItem(MetadataIndex(fqn, self.offsets), WriteItemType.SHARD, tensor_data=data)]

    def __get_tensor_shard__(self, index: Any) -> Tensor:
        return self.as_subclass(Tensor)


def _as_shard(tensor: Tensor, metadata: ShardMetadata) -> Tensor:
    """Return the tensor as a :class:`_Shard` with its position."""
    shard = tensor.as_subclass(_Shard)
    shard.full_shape, shard.offsets = torch.Size(metadata.shape), torch.Size(metadata.offsets)
    return shard


class _Replicas:
    """Chooses which of the ranks with the same shard writes it (HSDP, tensor parallelism).

    All ranks make the same choice without communication: the replica that has the fewest elements so far. So the plan
    of a checkpoint, which rank 0 makes, has each shard once, and not once from each replica.
    """

    def __init__(self) -> None:
        self._loads: dict[Any, list[tuple[int, int]]] = {}

    def writes_next(self, tensor: Any) -> bool:
        """Return whether this rank writes the next tensor; all ranks must go through the same tensors."""
        mesh = tensor.device_mesh
        dims = tuple(index for index, placement in enumerate(tensor.placements) if placement.is_replicate())
        sizes = [mesh.size(index) for index in dims]
        if math.prod(sizes) == 1:
            return True
        # Ascending, and thus a heap.
        loads = self._loads.setdefault((mesh, dims), [(0, replica) for replica in range(math.prod(sizes))])
        load, replica = loads[0]
        heapq.heapreplace(loads, (load + tensor.numel(), replica))
        mine = 0
        for index, size in zip(dims, sizes, strict=True):
            mine = mine * size + mesh.get_local_rank(index)
        return replica == mine


@contextlib.contextmanager
def _quiet() -> Generator[None]:
    """Suppress the warning that torch gives without a process group."""
    if dist.is_initialized():  # this may be a background thread, and warning filters are global
        yield
        return
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "torch.distributed is disabled")
        yield


def _rename(begun: Path, folder: Path) -> None:
    """Rename a folder to its final name, and remove the old one; atomic if the system can swap two paths."""
    file_format.sync_folder(begun)
    before = begun
    if folder.is_dir() and not folder.is_symlink() and not _is_checkpoint(folder):
        raise FileExistsError(
            f"{str(folder)!r} exists and is not a checkpoint, so it is not replaced. Pass another name."
        )
    if os.path.lexists(folder):
        if not swap_paths(begun, folder):
            before = folder.with_name(f".{folder.name}.{secrets.token_hex(4)}.tmp")
            folder.rename(before)
            begun.rename(folder)
    else:
        begun.rename(folder)
    file_format.sync_folder(folder.parent)
    if before.is_dir() and not before.is_symlink():
        shutil.rmtree(before, ignore_errors=True)
    else:
        before.unlink(missing_ok=True)


def _is_checkpoint(folder: Path) -> bool:
    """Return whether a folder may be replaced: it is a checkpoint, maybe a corrupted one, or empty."""
    return any((folder / name).is_file() for name in (MANIFEST, ".metadata")) or not any(folder.iterdir())
