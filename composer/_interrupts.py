"""Ctrl-C while modules are imported: an import may swallow it, turn it into another error, or abort the process."""

from __future__ import annotations

import _thread
import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable, Generator
from types import FrameType

__all__ = ["INTERRUPTED", "CtrlC", "between_imports"]

# Exit status of a shell for a process that ended by Ctrl-C.
INTERRUPTED = 130

# Seconds between two looks at whether an import has ended, and until an import that never ends is interrupted.
_AGAIN, _LONGEST = 0.02, 30.0


def between_imports(handle: Callable[[int], None]) -> Callable[[int, FrameType | None], None]:
    """Return a handler of signals that is called after the import that a signal interrupts.

    Args:
        handle: Called with the number of the signal. What it raises does not end in the middle of a module.

    >>> seen = []
    >>> between_imports(seen.append)(2, None)
    >>> seen
    [2]
    """
    since: list[float] = []

    def handler(signum: int, frame: FrameType | None) -> None:
        since[:] = since or [time.monotonic()]
        if _is_importing(frame) and time.monotonic() < since[0] + _LONGEST:
            # A thread of the module threading takes locks, which may be held where the signal interrupts.
            _thread.start_new_thread(_send_again, (signum,))
            return
        since.clear()
        handle(signum)

    return handler


def _send_again(signum: int) -> None:
    """Send a signal to the main thread, also if that waits for something else then."""
    time.sleep(_AGAIN)
    ident = threading.main_thread().ident
    if ident is not None and hasattr(signal, "pthread_kill"):
        signal.pthread_kill(ident, signum)
    else:  # on Windows
        _thread.interrupt_main(signal.Signals(signum))


def _is_importing(frame: FrameType | None) -> bool:
    while frame is not None:
        if frame.f_code.co_filename.startswith("<frozen importlib"):
            return True
        frame = frame.f_back
    return False


class CtrlC:
    """What Ctrl-C does in a command: it ends the process at once until the command begins, then as an exception.

    The exception is not raised within an import. Where the process ignores Ctrl-C or handles it otherwise, nothing
    changes.

    Args:
        message: What is written then to stderr.
        status: Exit status of the process that is ended at once.

    >>> with CtrlC("interrupted", 130) as ctrl_c:
    ...     ctrl_c.raises()
    """

    def __init__(self, message: str, status: int) -> None:
        self._message, self._status = message, status
        self._is_begun = False
        self._later = between_imports(self._raise)
        self._stack = contextlib.ExitStack()

    def __enter__(self) -> CtrlC:
        """Handle Ctrl-C."""
        self._stack.enter_context(self._handled())
        return self

    def __exit__(self, *error: object) -> None:
        """Handle it as before."""
        self._stack.close()

    def raises(self) -> None:
        """From now on, Ctrl-C is a KeyboardInterrupt, so that what runs can clean up."""
        self._is_begun = True

    @contextlib.contextmanager
    def _handled(self) -> Generator[None]:
        is_usual = signal.getsignal(signal.SIGINT) is signal.default_int_handler
        if not is_usual or threading.current_thread() is not threading.main_thread():
            yield
            return
        signal.signal(signal.SIGINT, self._handle)
        try:
            yield
        finally:
            signal.signal(signal.SIGINT, signal.default_int_handler)
            # If one has passed through a string that was executed, as of a data class, python -m would end by SIGINT
            # rather than with a status, unless another string is executed.
            exec("")

    def _handle(self, signum: int, frame: FrameType | None) -> None:
        if self._is_begun:
            self._later(signum, frame)
        else:
            os.write(2, f"{self._message}\n".encode())
            os._exit(self._status)

    @staticmethod
    def _raise(signum: int) -> None:
        del signum
        raise KeyboardInterrupt
