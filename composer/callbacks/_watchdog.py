"""Raise TimeoutError in a thread that waits too long, such as for a hanging DataLoader (watchdog)."""

from __future__ import annotations

import ctypes
import logging
import signal
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from types import CodeType, FrameType
from typing import Any, Final

from composer.core.engine import Engine

__all__ = ["Watchdog"]

_log = logging.getLogger(__name__)

_SIGNAL: Final = getattr(signal, "SIGUSR2", None) if hasattr(signal, "pthread_kill") else None
_GRACE: Final = 10.0


@dataclass(eq=False)
class _Wait:
    """One wait: its description, its start, and the code of the functions that wait."""

    what: str
    since: float
    codes: tuple[CodeType, ...]


class Watchdog:
    """Measures from a background thread how long another thread waits, and raises ``TimeoutError`` there.

    The main thread is interrupted by a signal (SIGUSR2), which also ends sleeps and system calls; other threads, and
    all threads on platforms without such signals, when they next run Python code. A wait that ended by an exception,
    after which the thread does something else, is not overdue.

    Args:
        timeout: The longest wait, in seconds.
        report: Returns the error message, given the description of the wait and the frame of the waiting thread; called
            in the watching thread.

    >>> watchdog = Watchdog(60.0, lambda what, frame: what)
    >>> watchdog.start()
    >>> watchdog.begin("a train")
    >>> watchdog.end()
    >>> watchdog.stop()
    """

    def __init__(self, timeout: float, report: Callable[[str, FrameType], str]) -> None:
        self.timeout = timeout
        self._report = report
        self._wait: _Wait | None = None
        self._fired: tuple[_Wait, str] | None = None
        self._thread: threading.Thread | None = None
        self._watched = 0
        self._stopping = threading.Event()
        self._previous: Any = None
        self._installed = False

    def start(self) -> None:
        """Start watching the calling thread."""
        self.stop()
        self._watched = threading.get_ident()
        self._install()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._watch, args=(self._stopping,), name="loader-watchdog", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Stop watching; further calls do nothing."""
        self._wait = None
        self._stopping.set()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()
        self._thread = None
        self._uninstall()

    def begin(self, what: str) -> None:
        """Mark the start of a wait.

        Args:
            what: Description of the wait, for the report.
        """
        self._wait = _Wait(what, time.monotonic(), _loop_codes())

    def end(self) -> None:
        """Mark the end of the wait."""
        self._wait = None

    def _watch(self, stopping: threading.Event) -> None:
        tick = min(self.timeout / 10, 1.0)
        pause, reported = tick, None
        while not stopping.wait(pause):
            wait, pause = self._wait, tick
            if wait is None or wait is reported:
                continue
            left = wait.since + self.timeout - time.monotonic()
            if left > 0:
                pause = left
                continue
            frame = sys._current_frames().get(self._watched)
            reported = wait
            if frame is not None and _is_in(wait.codes, frame):
                try:
                    report = self._report(wait.what, frame)
                except Exception as error:  # a poor report is better than none
                    report = f"The {wait.what} did not arrive within {self.timeout:g} s. The report failed: {error!r}."
                self._interrupt(wait, report, stopping)

    def _interrupt(self, wait: _Wait, report: str, stopping: threading.Event) -> None:
        if self._wait is not wait:
            return  # it ended while the report was written
        if self._installed:
            self._fired = (wait, report)
            signal.pthread_kill(self._watched, _SIGNAL or 0)
            deadline = time.monotonic() + _GRACE
            while self._wait is wait and time.monotonic() < deadline and not stopping.wait(0.1):
                pass
            if self._wait is wait:  # in native code that blocks signal handlers
                _log.error(report)
            return
        _log.error(report)  # an exception raised from another thread cannot carry a message
        error = ctypes.py_object(TimeoutError)
        ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(self._watched), error)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        fired, self._fired = self._fired, None
        if fired is None:
            self._forward(number, frame)
        elif fired[0] is self._wait:
            self._wait = None
            raise TimeoutError(fired[1])

    def _forward(self, number: int, frame: FrameType | None) -> None:
        """Handle a signal that is not from this watchdog with the previous handler."""
        if callable(self._previous):
            self._previous(number, frame)
        elif self._previous is signal.SIG_DFL:
            signal.signal(number, signal.SIG_DFL)
            signal.raise_signal(number)

    def _install(self) -> None:
        if _SIGNAL is None or threading.current_thread() is not threading.main_thread():
            return
        previous = signal.getsignal(_SIGNAL)
        if previous is not None:  # None is a handler in C, which could not be restored
            self._previous, self._installed = previous, True
            signal.signal(_SIGNAL, self._on_signal)

    def _uninstall(self) -> None:
        if not self._installed or threading.current_thread() is not threading.main_thread():
            return  # only the main thread can set handlers; this one forwards signals
        if _SIGNAL is not None and signal.getsignal(_SIGNAL) == self._on_signal:
            signal.signal(_SIGNAL, self._previous)
        self._installed = False


def _loop_codes() -> tuple[CodeType, ...]:
    """Return the code of the function that fired the current event, and of its caller."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code is not Engine.run_event.__code__:
        frame = frame.f_back
    codes: list[CodeType] = []
    while frame is not None and len(codes) < 2:
        frame = frame.f_back
        if frame is not None:
            codes.append(frame.f_code)
    return tuple(codes)


def _is_in(codes: tuple[CodeType, ...], frame: FrameType) -> bool:
    """Return whether a thread is in one of the given functions; True if none are given."""
    if not codes:
        return True
    current: FrameType | None = frame
    while current is not None:
        if current.f_code in codes:
            return True
        current = current.f_back
    return False
