"""Destroy the process group that composer created when the process exits, without a hang or deadlock at exit."""

from __future__ import annotations

import gc
import logging
import os
import sys
import threading
import weakref
from collections.abc import Callable
from typing import Any

import torch.distributed as torch_dist

from composer._at_exit import call_last
from composer.dist.ranks import is_initialized

__all__ = ["destroy_at_exit", "release_at_exit"]

_log = logging.getLogger("composer.dist")

# Seconds that pending collectives may take to end, as where others are behind, and NCCL's communicators, which wait for
# their peers, as where another rank still writes a checkpoint; then the process exits all the same.
_PATIENCE = 10.0
# After an exception others may wait for this process, and see that it has failed once it has exited.
_PATIENCE_AFTER_ERROR = 2.0

_current: _Ending | None = None
_releases: list[weakref.WeakMethod[Callable[[], object]]] = []


def destroy_at_exit() -> None:
    """Have the default process group destroyed at exit; for one that this library has created.

    A thread of gloo that releases the tensors of a collective while the interpreter ends would abort the process
    (SIGABRT, "terminate called without an active exception"), and NCCL warns of a group that is not destroyed. What
    runs at exit and was registered since composer was imported, and threads that save checkpoints, still have the
    group. One that the user has destroyed, or replaced, is left alone.

    >>> destroy_at_exit()  # does nothing without a process group
    """
    global _current
    if not is_initialized():
        return
    if _current is not None:
        _current.forget()
    _current = _Ending(torch_dist.group.WORLD)
    call_last(_end)


def release_at_exit(release: Callable[[], object]) -> None:
    """Have a method called at exit, before the process group is destroyed, that drops references to the group.

    The threads of a group end with the last reference to it.

    Args:
        release: A bound method; its object may go before.

    >>> release_at_exit(threading.Event().set)
    """
    _releases[:] = [one for one in _releases if one() is not None]
    _releases.append(weakref.WeakMethod(release))


def _end() -> None:
    if _current is not None:
        _current.end()


class _Ending:
    """The end of a process group.

    Args:
        group: The default group.
    """

    def __init__(self, group: Any) -> None:
        # Weak: a group that is held does not end.
        self._group = weakref.ref(group)
        self._process = os.getpid()
        self._begins = threading.Event()
        self._is_over = threading.Event()
        self._forgotten = False
        # Now, since no thread can be started at exit. It may be left waiting for other processes.
        self._thread = threading.Thread(target=self._run, name="process-group", daemon=True)
        self._thread.start()

    def forget(self) -> None:
        """Leave the group alone."""
        self._forgotten = True
        self._begins.set()

    def end(self) -> None:
        """Destroy the group if it is still the default one, and wait for that for a limited time."""
        # Processes that were forked have the group's connections, and not its threads.
        if os.getpid() != self._process or not is_initialized() or self._group() is not torch_dist.group.WORLD:
            return
        released = [_call(release) for one in _releases if (release := one()) is not None]
        if released:
            gc.collect()
        self._begins.set()
        patience = _PATIENCE_AFTER_ERROR if _has_failed() else _PATIENCE
        if not self._is_over.wait(patience):
            _log.warning("Other ranks are not at their end yet: the process group was not destroyed in %g s.", patience)

    def _run(self) -> None:
        self._begins.wait()
        if self._forgotten:
            return
        try:
            if _has_failed() and "nccl" in str(torch_dist.get_backend_config()):
                # Waits for nobody; destroying would wait for pending collectives.
                torch_dist.distributed_c10d._abort_process_group()  # pyright: ignore[reportPrivateUsage]
            else:
                torch_dist.destroy_process_group()
        except Exception as error:
            _log.debug("The process group could not be destroyed: %s", error)
        finally:
            self._is_over.set()


def _call(release: Callable[[], object]) -> None:
    """Call it; an error of one does not keep the group."""
    try:
        release()
    except Exception:
        _log.exception("%r failed; the process group is destroyed all the same.", release)


def _has_failed() -> bool:
    """Whether an exception that nobody has caught ends the process."""
    return getattr(sys, "last_value", None) is not None
