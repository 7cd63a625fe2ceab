"""Finding out, where processes wait in vain, for which one they wait and where that one is.

Nothing is sent while all goes well. A process whose wait fails leaves a note in the store of the process group and
calls the roll; a thread of each process, which looks there only when its process has made no progress for half of the
timeout, answers with the stack of the training thread. Those without a note are the ones that did not come.
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

__all__ = ["AbsentRankError", "Together", "name_absent_ranks", "note_step", "start_hang_watcher"]

# By which errors of communication are known: those of gloo are plain RuntimeErrors, most with the path of its source.
_MARKS: Final = ("gloo", "NCCL", "ProcessGroup", "Application timeout caused pair closure", "closed by peer")
_NOTED: Final = "Roll call:"


class AbsentRankError(RuntimeError):
    """Processes waited for others that did not come.

    Args:
        message: Which, and where they are.
        ranks: Their ranks.

    >>> error = AbsentRankError("Rank 1 did not come.", [1])
    >>> error.ranks, str(error)
    ((1,), 'Rank 1 did not come.')
    """

    def __init__(self, message: str, ranks: Iterable[int]) -> None:
        self.ranks = tuple(ranks)
        # Both stay in `args`, so that the error survives pickling between processes.
        super().__init__(message, self.ranks)

    def __str__(self) -> str:
        return str(self.args[0])


_current: HangWatcher | None = None
_group: weakref.ref[Any] | None = None


def start_hang_watcher(timeout: float) -> None:
    """Begin to answer others that wait for this process, and to ask them; called once the process group is there.

    Args:
        timeout: Seconds until collectives fail.

    >>> start_hang_watcher(300.0)  # does nothing in a single process
    """
    global _current, _group
    world: Any = torch_dist.group.WORLD
    if _current is not None and _group is not None and _group() is world:
        return
    _stop()
    if get_world_size() == 1:
        return
    # Weak: a group that is held does not end.
    _group = weakref.ref(world)
    store = torch_dist.distributed_c10d._get_default_store()  # pyright: ignore[reportPrivateUsage]
    _current = HangWatcher(store, get_global_rank(), get_world_size(), timeout)
    _current.start()
    # A thread that is in the store when the interpreter ends would abort the process.
    atexit.unregister(_stop)
    atexit.register(_stop)
    if not faulthandler.is_enabled() and (file := stderr_file()) is not None:
        faulthandler.enable(file)  # for backends that abort the process when a collective times out


def _stop() -> None:
    global _current, _group
    if _current is not None:
        _current.stop()
    _current = _group = None


def note_step(step: int) -> None:
    """Note how far this process has come, for the report on those that wait and those they wait for.

    Where no step is noted for four fifths of the timeout of collectives, the report is logged as a warning, also if
    nothing has failed yet: on NCCL a collective that times out ends the process, and then it is too late.

    Args:
        step: Number of batches trained.

    >>> note_step(3)
    """
    if _current is not None:
        _current.step = step
        _current.beats += 1


@contextlib.contextmanager
def name_absent_ranks() -> Generator[None]:
    """Run the body; where it waits in vain for other processes, say which did not come and where they are.

    An error of communication becomes an :class:`AbsentRankError`. Any other exception is left as it is and told to the
    others, whose own errors, which follow from it, then name it.

    Raises:
        AbsentRankError: Others did not come, or have ended.

    >>> with name_absent_ranks():
    ...     print("training")
    training
    """
    call = _current
    if call is None or not torch_dist.is_initialized():
        yield
        return
    call.begin()
    try:
        yield
    except Exception as error:
        if _is_explained(error):
            raise  # by a collective in the body
        if _is_of_communication(error):
            _explain(call, error)
        else:
            with contextlib.suppress(RuntimeError):
                call.tell(error)
        raise
    finally:
        call.step = None


class Together:
    """The time in a collective: others see that this process waits, and it learns who did not come.

    Args:
        group: The processes that take part; all if ``None``.

    >>> with Together():
    ...     pass
    """

    def __init__(self, group: torch_dist.ProcessGroup | None = None) -> None:
        self._group = group

    def __enter__(self) -> None:
        if _current is not None:
            _current.mark(waits=True)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        call = _current
        if call is None:
            return
        call.mark(waits=False)
        if error is not None and _is_of_communication(error):
            _explain(call, error, torch_dist.get_process_group_ranks(self._group))


def _explain(call: HangWatcher, error: RuntimeError, ranks: Sequence[int] | None = None) -> None:
    """Raise an error that says who did not come; where all gave up, note that on the one there is."""
    missing, text = call.explain(error, ranks)
    if missing:
        ended = str(error).strip().partition("\n")[0]
        raise AbsentRankError(f"{text}\nThe wait ended with: {ended}", missing) from error
    error.add_note(f"{_NOTED} {text}")


def _is_explained(error: BaseException) -> bool:
    """Whether the roll was called for an error."""
    notes: list[str] = getattr(error, "__notes__", [])
    return isinstance(error, AbsentRankError) or any(note.startswith(_NOTED) for note in notes)


def _is_of_communication(error: BaseException) -> TypeGuard[RuntimeError]:
    """Whether an error says that others could not be reached, and not that something is wrong here."""
    if not isinstance(error, RuntimeError):
        return False
    return isinstance(error, torch_dist.DistError) or any(mark in str(error) for mark in _MARKS)
