"""Writing checkpoints, at once or behind the training."""

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
from composer.checkpoint.sharded_tensors import has_sharded, whole
from composer.checkpoint.staging import Snapshot
from composer.warnings import ComposerWarning

if TYPE_CHECKING:
    from composer.core.checkpoint_folders import CheckpointFolders

__all__ = ["CheckpointWriter"]


class CheckpointWriter:
    """Writes checkpoints in the order in which they come.

    Args:
        behind: Whether a thread writes while training goes on, which then waits for a copy in host memory only. One is
            written at a time: the next waits for the one before.
        on_failure: Whether a checkpoint that cannot be written ends the training ("raise") or is a warning ("warn").
            What was written before is there in any case.

    >>> writer = CheckpointWriter(behind=True)
    >>> writer.write({"state": {}}, tmp_path / "a.pt")
    >>> writer.close()
    >>> (tmp_path / "a.pt").exists()
    True
    """

    def __init__(self, *, behind: bool = False, on_failure: Literal["raise", "warn"] = "raise") -> None:
        self._behind = behind
        self._on_failure = on_failure
        self._snapshot = Snapshot()
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
        apart: bool = False,
    ) -> None:
        """Write a checkpoint; all processes must call this.

        Args:
            content: What it holds; may change as soon as this returns.
            path: Where to.
            then: Called once it is on the disk, by the thread that calls this object; not in processes that wrote
                nothing.
            otherwise: Called in place of that if it could not be written.
            folders: How it is divided among the processes; None is a file, which the first writes.
            apart: Whether each process writes to a folder of its own.

        Raises:
            OSError: This one could not be written, or the one before if they are written behind the training.
        """
        self.wait()
        job = _Job(path, then, otherwise)
        if folders is not None:
            write = self._in_parts(content, path, folders, apart)
        else:
            is_copy = has_sharded(content)
            if is_copy:
                content = whole(content)
            if dist.get_global_rank() != 0:
                return
            kept = self._copied(content) if self._behind and not is_copy else content
            write = lambda: write_file(kept, path)  # noqa: E731
        if not self._behind:
            self._attempt(write, job)
            return
        if self._thread is None:
            # One that waits for work takes it up without training having to wait for its start. The end of the process
            # waits for what it writes.
            self._thread = ThreadPoolExecutor(1, "composer-checkpoint")
        self._running = self._thread.submit(write), job

    def _copied(self, content: dict[str, Any]) -> dict[str, Any]:
        """A copy of what training goes on to change; the states of random generators were made for this checkpoint."""
        kept = {key: value for key, value in content.items() if key == "rng"}
        return {**self._snapshot.take({key: content[key] for key in content if key not in kept}), **kept}

    def _in_parts(
        self, content: dict[str, Any], path: Path, folders: CheckpointFolders, apart: bool
    ) -> Callable[[], None]:
        """What writes this process's part, of a copy if that is to be behind the training."""
        divided = sharded_writer.divide(content)
        if self._behind:
            copy = self._snapshot.take({"rest": divided.rest, "tensors": divided.tensors})
            divided = sharded_writer.Divided(copy["rest"], copy["tensors"], divided.places)
            if self._group is None and dist.is_initialized():
                # Training goes on in the group of all meanwhile, where each operation has its turn.
                self._group = cast("torch_dist.ProcessGroup", torch_dist.new_group(backend="gloo"))
        group, planner, engine = self._group, folders.save_planner, folders.engine
        return lambda: sharded_writer.write(divided, path, apart=apart, group=group, planner=planner, engine=engine)

    def poll(self) -> None:
        """Tell of a failure, if the checkpoint in work has failed by now.

        Raises:
            OSError: It could not be written.
        """
        if self._running is not None and self._running[0].done():
            self.wait()

    def wait(self) -> None:
        """Wait until the checkpoint in work is written.

        Raises:
            OSError: It could not be written.
        """
        if self._running is not None:
            (writing, job), self._running = self._running, None
            self._attempt(writing.result, job)

    def close(self) -> None:
        """Wait, and let go of the memory.

        Raises:
            OSError: The last checkpoint could not be written.
        """
        try:
            self.wait()
        finally:
            self._snapshot = Snapshot()
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
            self._tell(error, f"The checkpoint {str(job.path)!r} could not be written")
            return
        try:
            job.then()
        except Exception as error:
            self._tell(error, f"The checkpoint {str(job.path)!r} is written, but not what comes with it")

    def _tell(self, error: Exception, what: str) -> None:
        if self._on_failure == "raise":
            error.add_note(f"{what}; earlier ones are as they were.")
            raise error
        warnings.warn(f"{what} ({error}); earlier ones are as they were.", ComposerWarning, stacklevel=4)


@dataclass(frozen=True)
class _Job:
    path: Path
    then: Callable[[], object]
    otherwise: Callable[[], object]
