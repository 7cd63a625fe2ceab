"""Report why a distributed run hangs: which rank did not join a collective, with its stack trace.

Nothing is sent while the run makes progress. In a hang or deadlock, a rank whose collective times out posts its error
to the store of the process group and requests a report. A background thread on each rank, which polls the store only
if its rank has made no progress for half of the timeout, responds with the stack trace of the training thread. Ranks
that did not post a timeout themselves are the missing ones.
"""

from __future__ import annotations

import atexit
import contextlib
import faulthandler
import weakref
from collections.abc import Generator, Iterable, Sequence
from types import TracebackType
from typing import Any, Final, TypeGuard

import torch.distributed as torch_dist

from composer.dist._hang_watcher import HangWatcher, stderr_file
from composer.dist.ranks import get_global_rank, get_world_size
from composer.dist.simulation import is_simulated

__all__ = [
    "InCollective",
    "MissingRankError",
    "name_missing_ranks",
    "note_step",
    "start_hang_watcher",
]

# Identify communication errors by their text: gloo raises plain RuntimeErrors, most with the path of its source file.
_COMMUNICATION_ERROR_MARKS: Final = (
    "gloo",
    "NCCL",
    "ProcessGroup",
    "Application timeout caused pair closure",
    "closed by peer",
)
_REPORT_PREFIX: Final = "Hang report:"


class MissingRankError(RuntimeError):
    """A collective failed because other ranks did not join it.

    Args:
        message: Names the missing ranks, with their stack traces if they responded.
        ranks: The missing ranks.

    >>> error = MissingRankError("Rank 1 did not join the collective.", [1])
    >>> error.ranks, str(error)
    ((1,), 'Rank 1 did not join the collective.')
    """

    def __init__(self, message: str, ranks: Iterable[int]) -> None:
        self.ranks = tuple(ranks)
        # Keep both in `args`, so that the error can be pickled.
        super().__init__(message, self.ranks)

    def __str__(self) -> str:
        return str(self.args[0])


_current: HangWatcher | None = None
_group: weakref.ref[Any] | None = None


def start_hang_watcher(timeout: float) -> None:
    """Start the background thread that responds to hang reports; call this after the process group is initialized.

    Args:
        timeout: Collective timeout in seconds.

    >>> start_hang_watcher(300.0)  # does nothing in a single process
    """
    global _current, _group
    world: Any = torch_dist.group.WORLD
    if _current is not None and _group is not None and _group() is world:
        return
    _stop()
    if get_world_size() == 1 or is_simulated():
        return
    # Weak: a strong reference would keep the group alive.
    _group = weakref.ref(world)
    store = torch_dist.distributed_c10d._get_default_store()  # pyright: ignore[reportPrivateUsage]
    _current = HangWatcher(store, get_global_rank(), get_world_size(), timeout)
    _current.start()
    # A thread that uses the store during interpreter shutdown would abort the process.
    atexit.unregister(_stop)
    atexit.register(_stop)
    if not faulthandler.is_enabled() and (file := stderr_file()) is not None:
        faulthandler.enable(file)  # some backends abort the process when a collective times out


def _stop() -> None:
    global _current, _group
    if _current is not None:
        _current.stop()
    _current = _group = None


def note_step(step: int) -> None:
    """Record the progress of this rank for hang reports.

    If no step is recorded for 80 % of the collective timeout, the report is logged as a warning, even if no collective
    has failed yet: on NCCL, a collective that times out ends the process, so a later report would be lost.

    Args:
        step: Number of batches trained.

    >>> note_step(3)
    """
    if _current is not None:
        _current.step = step
        _current.progress_count += 1


@contextlib.contextmanager
def name_missing_ranks() -> Generator[None]:
    """Run the body; if it fails because other ranks are missing, raise an error that names them with stack traces.

    A communication error becomes a :class:`MissingRankError`. Any other exception is re-raised and posted to the other
    ranks, so that their resulting communication errors name the cause.

    Raises:
        MissingRankError: Other ranks did not join, or have exited.

    >>> with name_missing_ranks():
    ...     print("training")
    training
    """
    watcher = _current
    if watcher is None or not torch_dist.is_initialized():
        yield
        return
    watcher.begin()
    try:
        yield
    except Exception as error:
        if _has_report(error):
            raise  # a collective in the body has reported it
        if _is_communication_error(error):
            _raise_missing_ranks(watcher, error)
        else:
            with contextlib.suppress(RuntimeError):
                watcher.post_error(error)
        raise
    finally:
        watcher.step = None


class InCollective:
    """Context manager around a collective: marks this rank as waiting, and names the missing ranks if it fails.

    Args:
        group: The process group; all ranks if ``None``.

    >>> with InCollective():
    ...     pass
    """

    def __init__(self, group: torch_dist.ProcessGroup | None = None) -> None:
        self._group = group

    def __enter__(self) -> None:
        if _current is not None:
            _current.mark(waits=True)

    def __exit__(
        self, exc_type: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        watcher = _current
        if watcher is None:
            return
        watcher.mark(waits=False)
        if error is not None and _is_communication_error(error):
            _raise_missing_ranks(watcher, error, torch_dist.get_process_group_ranks(self._group))


def _raise_missing_ranks(watcher: HangWatcher, error: RuntimeError, ranks: Sequence[int] | None = None) -> None:
    """Raise an error that names the missing ranks; if all ranks timed out, add the report to ``error`` as a note."""
    missing, text = watcher.request_report(error, ranks)
    if missing:
        cause = str(error).strip().partition("\n")[0]
        raise MissingRankError(f"{text}\nThe collective failed with: {cause}", missing) from error
    error.add_note(f"{_REPORT_PREFIX} {text}")


def _has_report(error: BaseException) -> bool:
    """Return whether a hang report was already made for an error."""
    notes: list[str] = getattr(error, "__notes__", [])
    return isinstance(error, MissingRankError) or any(note.startswith(_REPORT_PREFIX) for note in notes)


def _is_communication_error(error: BaseException) -> TypeGuard[RuntimeError]:
    """Return whether an error is a failure to communicate with other ranks."""
    if not isinstance(error, RuntimeError):
        return False
    return isinstance(error, torch_dist.DistError) or any(mark in str(error) for mark in _COMMUNICATION_ERROR_MARKS)
