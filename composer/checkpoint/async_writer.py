"""Write checkpoints synchronously, or asynchronously in a background thread while training continues."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast

import torch.distributed as torch_dist

from composer import dist
from composer.checkpoint import sharded_writer
from composer.checkpoint.save import write_file
from composer.checkpoint.sharded_tensors import has_sharded_tensors, unshard
from composer.checkpoint.staging import HostCopy
from composer.warnings import ComposerWarning

if TYPE_CHECKING:
    from composer.core.checkpoint_folders import CheckpointFolders

__all__ = ["CheckpointWriter"]


class CheckpointWriter:
    """Writes checkpoints in the order of the calls.

    Args:
        background: Whether a thread writes while training continues; training then waits only for a copy to host
            memory. One checkpoint is written at a time: the next waits for the previous one.
        on_failure: Whether a checkpoint that cannot be written ends training ("raise") or is a warning ("warn").
            Earlier checkpoints are kept in either case.

    >>> writer = CheckpointWriter(background=True)
    >>> writer.write({"state": {}}, tmp_path / "a.pt")
    >>> writer.close()
    >>> (tmp_path / "a.pt").exists()
    True
    """

    def __init__(self, *, background: bool = False, on_failure: Literal["raise", "warn"] = "raise") -> None:
        self._in_background = background
        self._on_failure = on_failure
        self._host_copy = HostCopy()
        self._thread: ThreadPoolExecutor | None = None
        self._running: tuple[Future[None], _Job] | None = None
        self._group: torch_dist.ProcessGroup | None = None

    def write(
        self,
        content: dict[str, Any],
        path: Path,
        then: Callable[[], object] = lambda: None,
        otherwise: Callable[[], object] = lambda: None,
        *,
        folders: CheckpointFolders | None = None,
        per_rank_folder: bool = False,
    ) -> None:
        """Write a checkpoint; all ranks must call this.

        Args:
            content: The content; may change as soon as this returns.
            path: The destination.
            then: Called once the checkpoint is on disk, in the thread that calls this object; not on ranks that
                wrote nothing.
            otherwise: Called instead if it could not be written.
            folders: How it is sharded; None writes a single file on rank 0.
            per_rank_folder: Whether each rank writes to a separate folder.

        Raises:
            OSError: This checkpoint could not be written, or with ``background`` the previous one.
        """
        self.wait()
        job = _Job(path, then, otherwise)
        if folders is not None:
            write = self._sharded_write(content, path, folders, per_rank_folder)
        else:
            is_copy = has_sharded_tensors(content)
            if is_copy:
                content = unshard(content)
            if dist.get_global_rank() != 0:
                return
            kept = self._copied(content) if self._in_background and not is_copy else content
            write = lambda: write_file(kept, path)  # noqa: E731
        if not self._in_background:
            self._attempt(write, job)
            return
        if self._thread is None:
            # An idle thread starts writing at once. The interpreter waits for the thread at exit.
            self._thread = ThreadPoolExecutor(1, "composer-checkpoint")
        self._running = self._thread.submit(write), job

    def _copied(self, content: dict[str, Any]) -> dict[str, Any]:
        """Return a copy of what training changes next; the random states were collected for this checkpoint only."""
        kept = {key: value for key, value in content.items() if key == "rng"}
        return {**self._host_copy.copy({key: content[key] for key in content if key not in kept}), **kept}

    def _sharded_write(
        self, content: dict[str, Any], path: Path, folders: CheckpointFolders, per_rank_folder: bool
    ) -> Callable[[], None]:
        """Return a function that writes the shards of this rank, from a copy if it runs in the background."""
        checkpoint = sharded_writer.shard_checkpoint(content)
        if self._in_background:
            copy = self._host_copy.copy({"rest": checkpoint.rest, "tensors": checkpoint.tensors})
            checkpoint = sharded_writer.ShardedCheckpoint(copy["rest"], copy["tensors"], checkpoint.metadata)
            if self._group is None and dist.is_initialized():
                # Training uses the default group meanwhile, in which collectives run in order.
                self._group = cast("torch_dist.ProcessGroup", torch_dist.new_group(backend="gloo"))
        group, planner, engine = self._group, folders.save_planner, folders.engine
        return lambda: sharded_writer.write_sharded(
            checkpoint, path, per_rank_folder=per_rank_folder, group=group, planner=planner, engine=engine
        )

    def poll(self) -> None:
        """Report a failure of the checkpoint that is being written, without waiting for it.

        Raises:
            OSError: It could not be written.
        """
        if self._running is not None and self._running[0].done():
            self.wait()

    def wait(self) -> None:
        """Wait until the current checkpoint is written.

        Raises:
            OSError: It could not be written.
        """
        if self._running is not None:
            (writing, job), self._running = self._running, None
            self._attempt(writing.result, job)

    def close(self) -> None:
        """Wait for the current checkpoint, and release the thread and the memory.

        Raises:
            OSError: The last checkpoint could not be written.
        """
        try:
            self.wait()
        finally:
            self._host_copy = HostCopy()
            thread, self._thread = self._thread, None
            if thread is not None:
                thread.shutdown()
            group, self._group = self._group, None
            if group is not None and dist.is_initialized():
                torch_dist.destroy_process_group(group)

    def _attempt(self, write: Callable[[], object], job: _Job) -> None:
        try:
            write()
        except Exception as error:
            job.otherwise()
            self._report(error, f"The checkpoint {str(job.path)!r} could not be written")
            return
        try:
            job.then()
        except Exception as error:
            self._report(error, f"The checkpoint {str(job.path)!r} is written, but a step after it failed")

    def _report(self, error: Exception, what: str) -> None:
        if self._on_failure == "raise":
            error.add_note(f"{what}; earlier checkpoints are unchanged.")
            raise error
        warnings.warn(f"{what} ({error}); earlier checkpoints are unchanged.", ComposerWarning, stacklevel=4)


@dataclass(frozen=True)
class _Job:
    path: Path
    then: Callable[[], object]
    otherwise: Callable[[], object]
