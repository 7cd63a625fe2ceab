"""Checkpoints of several files: folders of ``torch.distributed.checkpoint``, to which each process writes its part.

The tensors are in the files of that format, and load on any number of processes. All else is in one file of ours beside
them, with the checksums of the others; it is written last.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import secrets
import shutil
import warnings
import zlib
from collections.abc import Generator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import torch
import torch.distributed as torch_dist
from torch import Tensor

from composer import dist
from composer.checkpoint import file_format
from composer.checkpoint.folder_conflicts import REST
from composer.checkpoint.on_all_ranks import by_all
from composer.checkpoint.sharded_tensors import is_sharded, part_of
from composer.checkpoint.swap import exchange

if TYPE_CHECKING:
    from composer.core.checkpoint_folders import CheckpointEngine

__all__ = ["MARK", "Divided", "Place", "checksum", "divide", "files_of_process", "write"]

MARK = "tensor of torch.distributed.checkpoint"
"""The key of what stands in that file in place of a tensor."""

_WHAT = "write its part of the checkpoint"


@dataclass(frozen=True)
class Place:
    """Where in a checkpoint the part of a tensor belongs that this process has.

    Attributes:
        path: The keys of the tensor.
        shape: Of the whole.
        offsets: Where the part begins in the whole.

    >>> Place(("state", "model", "weight"), (4, 2), (2, 0)).name
    'state.model.weight'
    """

    path: tuple[str, ...]
    shape: tuple[int, ...]
    offsets: tuple[int, ...]

    @property
    def name(self) -> str:
        """What the tensor is called in the files."""
        return ".".join(self.path)


@dataclass(frozen=True)
class Divided:
    """The content of a checkpoint as this process writes it.

    Attributes:
        rest: All but the tensors, with marks in their place.
        tensors: Of those, what this process has, by name; not copies.
        places: Where each belongs.

    >>> divide({"state": {"model": {"weight": torch.ones(2)}}}).rest["state"]["model"]["weight"]
    {'tensor of torch.distributed.checkpoint': 'state.model.weight', 'dims': None}
    """

    rest: dict[str, Any]
    tensors: dict[str, Tensor]
    places: dict[str, Place]


def divide(content: dict[str, Any]) -> Divided:
    """Take the tensors out of a checkpoint that are to be in files of their own: weights, and all that is divided.

    Args:
        content: As :func:`.collect` returns it.

    >>> divided = divide({"state": {"model": {"weight": torch.ones(2)}, "epoch": 1}})
    >>> divided.tensors, divided.places["state.model.weight"].shape
    ({'state.model.weight': tensor([1., 1.])}, (2,))
    """
    is_first = dist.get_global_rank() == 0
    divided = Divided({}, {}, {})
    names: dict[Any, str] = {}

    def walk(node: Any, path: tuple[str, ...]) -> Any:
        if isinstance(node, dict):
            return {key: walk(value, (*path, str(key))) for key, value in cast("dict[Any, Any]", node).items()}
        if isinstance(node, (list, tuple)):
            values = [walk(value, (*path, str(at))) for at, value in enumerate(cast("list[Any]", node))]
            return values if isinstance(node, list) else tuple(values)
        if not isinstance(node, Tensor) or not (is_sharded(node) or path[:2] == ("state", "model")):
            return node
        held: Any = node.detach()
        place = Place(path, tuple(node.shape), part_of(held)[0])
        dims = [getattr(one, "dim", None) for one in held.placements] if is_sharded(held) else None
        local: Tensor = held.to_local() if dims is not None else held
        # What all have, one writes; of what is divided, some may have nothing.
        if is_first or (dims is not None and local.numel()):
            divided.tensors[place.name], divided.places[place.name] = local, place
        # Tied weights are written under each name, for others that read them, and read here under the first.
        memory = (local.device, local.dtype, local.data_ptr(), local.shape, local.stride(), node.shape)
        return {MARK: names.setdefault(memory, place.name) if local.numel() else place.name, "dims": dims}

    with torch.no_grad():
        divided.rest.update(walk(content, ()))
    return divided


def write(
    divided: Divided,
    folder: Path,
    *,
    apart: bool = False,
    group: torch_dist.ProcessGroup | None = None,
    planner: Any = None,
    engine: CheckpointEngine | None = None,
) -> None:
    """Write a checkpoint to a folder, under a temporary name until it is complete; all processes must call this.

    A crash at any moment leaves other checkpoints as they were.

    Args:
        divided: What this process writes.
        folder: Where to; one that is there is replaced.
        apart: Whether the folder is this process's own, which gets only what this process writes, rather than one that
            all processes share.
        group: By which the processes agree; None is the one of all.
        planner: A ``SavePlanner``; None is one that lets each tensor be written once.
        engine: What writes the tensors, which are its own, in its format; None where they are among what is written.

    Raises:
        OSError: One of the processes could not write its part; all raise.

    >>> content = {"state": {"model": {"weight": torch.ones(2)}, "epoch": 1}}
    >>> write(divide(content), tmp_path / "ep1")
    >>> sorted(path.name for path in (tmp_path / "ep1").iterdir())
    ['.metadata', '__0_0.distcp', 'composer.pt']
    """
    is_first = dist.get_global_rank() == 0
    token = [secrets.token_hex(4)]
    dist.broadcast_object_list(token, group=group)
    begun = folder.with_name(f".{folder.name}.{token[0]}.tmp")

    def described() -> dict[str, Any]:
        return {name: checksum(begun / name) for name in files_of_process(begun)}

    def completed() -> None:
        if is_first:
            files = {name: entry for table in tables for name, entry in table.items()}
            file_format.write({"content": divided.rest, "files": files}, begun / REST)
        if is_first or apart:
            _rename(begun, folder)

    try:
        by_all(lambda: begun.mkdir(parents=True, exist_ok=True), _WHAT, group)
        if engine is None:
            _write_tensors(divided, begun, group, planner)
        else:
            engine.save(begun)
        tables = by_all(described, _WHAT, group)
        by_all(completed, _WHAT, group)
    except BaseException:
        if is_first or apart:
            shutil.rmtree(begun, ignore_errors=True)
        raise


def files_of_process(folder: Path) -> list[str]:
    """Return the names of the files in a folder that this process has written, the one that tells of the others last.

    Args:
        folder: The folder.

    >>> (tmp_path / "__0_0.distcp").touch(), (tmp_path / "__1_0.distcp").touch()
    (None, None)
    >>> files_of_process(tmp_path)
    ['__0_0.distcp']
    """
    rank = dist.get_global_rank()
    patterns = [f"__{rank}_*", f"*zero_pp_rank_{rank}_*"]
    if rank == 0:
        patterns += ["mp_rank_*", "zero_to_*.py", "latest"]
    found = sorted(path.name for pattern in patterns for path in folder.glob(pattern))
    return [*found, *(name for name in (".metadata", REST) if rank == 0 and (folder / name).is_file())]


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
            size, value = size + len(block), zlib.crc32(block, value)
    return {"size": size, "crc32": value}


def _write_tensors(divided: Divided, folder: Path, group: Any, planner: Any) -> None:
    dcp: Any = importlib.import_module("torch.distributed.checkpoint")
    nested: dict[str, Any] = {}
    for name, tensor in divided.tensors.items():
        *above, last = divided.places[name].path
        node = nested
        for key in above:
            node = node.setdefault(key, {})
        node[last] = _as_part(tensor, divided.places[name])
    with _quiet():
        try:
            dcp.save(nested, storage_writer=dcp.FileSystemWriter(folder), planner=planner, process_group=group)
        except dcp.CheckpointException as failure:
            # It is none of the exceptions that users catch, and says little of what has gone wrong.
            rank, (error, _) = next(iter(failure.failures.items()))
            error.add_note(f"This happened on rank {rank}.")
            raise error from None


def _as_part(tensor: Tensor, place: Place) -> Tensor:
    """The tensor, made to tell where it belongs."""
    from composer.checkpoint._part import Part

    part = tensor.as_subclass(Part)
    part.whole_shape, part.offsets = torch.Size(place.shape), torch.Size(place.offsets)
    return part


@contextlib.contextmanager
def _quiet() -> Generator[None]:
    """Without the warning that a single process gets, which no process group is made for."""
    if dist.is_initialized():  # a thread may be at work, and the list of warnings is that of the whole process
        yield
        return
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "torch.distributed is disabled")
        yield


def _rename(begun: Path, folder: Path) -> None:
    """Give the folder its name; what has the name keeps it until then, where the system can exchange two."""
    file_format.sync_folder(begun)
    before = begun
    if folder.is_dir() and not folder.is_symlink() and not _is_checkpoint(folder):
        raise FileExistsError(f"{str(folder)!r} is there and no checkpoint; it is not replaced. Give another name.")
    if os.path.lexists(folder):
        if not exchange(begun, folder):
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
    """Whether a folder may be replaced: it is a checkpoint, perhaps a damaged one, or empty."""
    return any((folder / name).is_file() for name in (REST, ".metadata")) or not any(folder.iterdir())
