"""Storage readers for ``torch.distributed.checkpoint.load``: from a folder, or downloaded from an object store.

In contrast to torch's own reader, these unpickle nothing: of a sharded checkpoint they read tensors only.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.metadata import Metadata
from torch.distributed.checkpoint.planner import LoadPlan, LoadPlanner
from torch.futures import Future

from composer import dist
from composer.checkpoint.folder_metadata import METADATA, read_metadata
from composer.checkpoint.folder_tensors import follow
from composer.checkpoint.on_all_ranks import run_on_all_ranks
from composer.checkpoint.user_validation import ensure_valid
from composer.storage.downloads import copy_file
from composer.storage.uris import is_remote

__all__ = ["DistCPObjectStoreReader", "FileSystemReaderWithValidation"]


class FileSystemReaderWithValidation(FileSystemReader):
    """Reads the tensors of a sharded checkpoint in a folder; each file is validated first, see :func:`.ensure_valid`.

    Args:
        path: The folder.

    >>> from composer.checkpoint.sharded_writer import shard_checkpoint, write_sharded
    >>> write_sharded(shard_checkpoint({"state": {"model": {"weight": torch.ones(2)}}}), tmp_path / "ep1")
    >>> reader = FileSystemReaderWithValidation(tmp_path / "ep1")
    >>> list(reader.read_metadata().state_dict_metadata)
    ['state.model.weight']
    """

    def __init__(self, path: str | Path) -> None:
        super().__init__(os.fspath(path))
        self._metadata: Metadata | None = None

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        """Return the metadata of the tensors.

        Args:
            args: Not used; torch passes some.
            kwargs: Likewise.

        Raises:
            ValueError: The user's function rejected the file.
            DamagedCheckpointError: It is corrupted.
            UnsafeCheckpointError: Reading it would run code.
        """
        ensure_valid(Path(self.path, METADATA))
        metadata: Metadata = read_metadata(Path(self.path))
        self._metadata = metadata
        return metadata

    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> Future[None]:
        """Read the tensors of a plan.

        Args:
            plan: What to read.
            planner: Provides the target tensors.

        Raises:
            ValueError: The user's function rejected a file.
            DamagedCheckpointError: A file is corrupted.
            UnsafeCheckpointError: The plan reads something other than tensors.
        """
        metadata = self.read_metadata() if self._metadata is None else self._metadata
        specs: dict[str, list[tuple[int, int]]] = {}
        for item in plan.items:
            info = metadata.storage_data[item.storage_index]
            specs.setdefault(info.relative_path, []).append((info.offset, info.length))
        for name, found in specs.items():
            ensure_valid(Path(self.path, name), found)
        follow(plan.items, metadata, Path(self.path), planner)
        done: Future[None] = Future()
        done.set_result(None)
        return done


class DistCPObjectStoreReader(FileSystemReaderWithValidation):
    """Reads the tensors of a remote sharded checkpoint; each node downloads only the files that its ranks need.

    All ranks must create one.

    Args:
        source_path: The folder: a URI, or a name in the object store.
        destination_path: Local folder for the downloaded files, which replace existing ones.
        object_store: An :class:`.ObjectStore` or a logger that stores files; None if the source is a URI.
        device_mesh: Accepted for old callers, and not used.

    Raises:
        ValueError: ``source_path`` is not a URI and there is no object store.
        FileNotFoundError: There is no sharded checkpoint.

    >>> DistCPObjectStoreReader("run/ep1", tmp_path)
    Traceback (most recent call last):
    ValueError: source_path='run/ep1' must be a URI, such as 's3://bucket/run/ep1', if no object_store is given.
    """

    def __init__(
        self,
        source_path: str,
        destination_path: str | Path,
        object_store: Any = None,
        device_mesh: Any = None,
    ) -> None:
        if object_store is None and not is_remote(source_path):
            raise ValueError(
                f"source_path={source_path!r} must be a URI, such as 's3://bucket/run/ep1', if no object_store is "
                f"given."
            )
        self.source_path, self.destination_path = source_path, os.fspath(destination_path)
        self.object_store, self.device_mesh = object_store, device_mesh
        self._fetched: set[str] = set()
        self._download([METADATA] if dist.get_local_rank() == 0 else [])
        super().__init__(self.destination_path)

    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> Future[None]:
        """Download the files that the plan needs, and read the tensors; all ranks must call this.

        Args:
            plan: What to read.
            planner: Provides the target tensors.

        Raises:
            OSError: A rank could not download a file.
        """
        metadata = self.read_metadata() if self._metadata is None else self._metadata
        needed = {metadata.storage_data[item.storage_index].relative_path for item in plan.items}
        everywhere = dist.all_gather_object(sorted(needed))
        first = dist.get_global_rank() - dist.get_local_rank()
        by_others = {name for names in everywhere[first : dist.get_global_rank()] for name in names}
        self._download(sorted(needed - by_others))
        return super().read_data(plan, planner)

    def _download(self, names: Iterable[str]) -> None:
        """Download files that this reader has not downloaded yet; all ranks must call this."""

        def download() -> None:
            for name in names:
                if name in self._fetched:
                    continue
                destination = Path(self.destination_path, name)
                # Even if a file exists: the files of all checkpoints have the same names.
                destination.parent.mkdir(parents=True, exist_ok=True)
                source = f"{self.source_path.rstrip('/')}/{name}"
                copy_file(source, destination, self.object_store, progress_bar=False)
                self._fetched.add(name)

        run_on_all_ranks(download, "download its files of the checkpoint")
