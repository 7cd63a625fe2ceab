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

# Seconds to wait for pending collectives (other ranks may be behind) and for NCCL's communicators, which wait for their
# peers (another rank may still be writing a checkpoint). After that the process exits anyway.
_TIMEOUT = 10.0
# After an exception other ranks may be waiting for this process; they notice the failure only once it has exited.
_TIMEOUT_AFTER_ERROR = 2.0

_current: _GroupDestroyer | None = None
_releases: list[weakref.WeakMethod[Callable[[], object]]] = []


def destroy_at_exit() -> None:
    """Register the default process group, created by this library, to be destroyed at exit.

    A gloo thread that releases the tensors of a collective during interpreter shutdown would abort the process
    (SIGABRT, "terminate called without an active exception"), and NCCL warns if a group is not destroyed. Exit handlers
    registered after composer was imported, and threads that save checkpoints, can still use the group. A group that the
    user has destroyed or replaced is left alone.

    >>> destroy_at_exit()  # does nothing without a process group
    """
    global _current
    if not is_initialized():
        return
    if _current is not None:
        _current.forget()
    _current = _GroupDestroyer(torch_dist.group.WORLD)
    call_last(_end)


def release_at_exit(release: Callable[[], object]) -> None:
    """Register a method that drops references to the process group, to be called before the group is destroyed at exit.

    The threads of a group end with the last reference to it.

    Args:
        release: A bound method, which is referenced weakly.

    >>> release_at_exit(threading.Event().set)
    """
    _releases[:] = [one for one in _releases if one() is not None]
    _releases.append(weakref.WeakMethod(release))


def _end() -> None:
    if _current is not None:
        _current.end()


class _GroupDestroyer:
    """Destroys a process group from a background thread.

    Args:
        group: The default group.
    """

    def __init__(self, group: Any) -> None:
        # Weak: a strong reference would keep the group alive.
        self._group = weakref.ref(group)
        self._process = os.getpid()
        self._start = threading.Event()
        self._done = threading.Event()
        self._forgotten = False
        # Start the thread now, since none can be started at exit. It may stay blocked on other ranks.
        self._thread = threading.Thread(target=self._run, name="process-group", daemon=True)
        self._thread.start()

    def forget(self) -> None:
        """Do not destroy the group."""
        self._forgotten = True
        self._start.set()

    def end(self) -> None:
        """Destroy the group if it is still the default one, and wait a limited time for that to finish."""
        # Forked processes have the group's connections but not its threads.
        if os.getpid() != self._process or not is_initialized() or self._group() is not torch_dist.group.WORLD:
            return
        released = [_call(release) for one in _releases if (release := one()) is not None]
        if released:
            gc.collect()
        self._start.set()
        timeout = _TIMEOUT_AFTER_ERROR if _has_failed() else _TIMEOUT
        if not self._done.wait(timeout):
            _log.warning("Other ranks have not finished yet: the process group was not destroyed within %g s.", timeout)

    def _run(self) -> None:
        self._start.wait()
        if self._forgotten:
            return
        try:
            if _has_failed() and "nccl" in str(torch_dist.get_backend_config()):
                # Abort does not wait; destroy would wait for pending collectives.
                torch_dist.distributed_c10d._abort_process_group()  # pyright: ignore[reportPrivateUsage]
            else:
                torch_dist.destroy_process_group()
        except Exception as error:
            _log.debug("The process group could not be destroyed: %s", error)
        finally:
            self._done.set()


def _call(release: Callable[[], object]) -> None:
    """Call a release method; log its error rather than keep the group."""
    try:
        release()
    except Exception:
        _log.exception("%r failed; the process group is destroyed anyway.", release)


def _has_failed() -> bool:
    """Return whether the process is exiting because of an uncaught exception."""
    return getattr(sys, "last_value", None) is not None
