"""Stop cleanly on SIGTERM, SIGINT (Ctrl-C) and SIGUSR1: record the signal, finish the step, exit with its code."""

from __future__ import annotations

import contextlib
import importlib
import os
import signal
import sys
import threading
import time
from collections.abc import Sequence
from types import FrameType, TracebackType
from typing import Any, Self

from composer import dist

__all__ = ["Interrupted", "Interruption", "import_for_exit", "is_reported"]


# Job schedulers signal both the launcher and its processes, and the launcher forwards the signal: repetitions of a
# signal within this many seconds count as one.
_COPIES = 1.0


class Interrupted(BaseException):
    """Raised between steps, when the state of the run is consistent, after a signal requested to stop.

    Args:
        signum: The signal number.

    >>> Interrupted(signal.SIGTERM)
    Interrupted('SIGTERM')
    """

    def __init__(self, signum: int) -> None:
        super().__init__(signal.Signals(signum).name)
        self.signum = signum

    def __str__(self) -> str:
        return "Ctrl-C" if self.signum == signal.SIGINT else str(self.args[0])

    def exit_process(self) -> None:
        """Exit as a program that is stopped by the signal does.

        Raises:
            KeyboardInterrupt: After Ctrl-C. If uncaught, the process dies of SIGINT with exit code 130, without a
                traceback, since the interruption was already reported.
            SystemExit: After another signal, with exit code 128 + signal number, such as 143 for SIGTERM.
        """
        if self.signum == signal.SIGINT:
            _suppress_traceback()
            raise _mark_reported(KeyboardInterrupt()) from None
        raise _mark_reported(SystemExit(128 + self.signum)) from None


_REPORTED = "_composer_has_told"


def is_reported(error: BaseException) -> bool:
    """Return whether an exception ends the process after a signal, which was reported as an interruption.

    Args:
        error: The exception.

    >>> is_reported(SystemExit(3))
    False
    """
    return hasattr(error, _REPORTED)


def _mark_reported(error: BaseException) -> BaseException:
    setattr(error, _REPORTED, True)
    return error


def _suppress_traceback() -> None:
    """Suppress the traceback of an exception that was already reported, and only of that one."""
    before = sys.excepthook
    if getattr(before, "__module__", None) == __name__:
        return

    def hook(cls: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        if not getattr(error, _REPORTED, False):
            before(cls, error, trace)

    sys.excepthook = hook


def import_for_exit() -> None:
    """Import what torch imports at exit, to show compile times.

    Some modules, such as those that define named tuples, run code from texts when they are imported. While Python
    exits, that makes it forget that SIGINT was the reason, and the exit code is 1: Ctrl-C then ends one program in a
    loop of a shell, not the loop.

    >>> import_for_exit()
    """
    if "torch._dynamo" in sys.modules:
        with contextlib.suppress(ImportError):
            importlib.import_module("tabulate")


class Interruption:
    """Context manager that records a signal instead of ending the process; a second signal ends it at once.

    Signal handlers can be set only in the main thread; in another thread this has no effect. SIGINT stays ignored if it
    is, as in the background jobs of a shell script: Ctrl-C is meant for the job in the foreground.

    Args:
        signals: The signal numbers.

    >>> with Interruption([signal.SIGTERM]) as interruption:
    ...     os.kill(os.getpid(), signal.SIGTERM)
    ...     interruption.signum == signal.SIGTERM
    True
    """

    def __init__(self, signals: Sequence[int]) -> None:
        self.signum: int | None = None
        self._received_at = 0.0
        self._signals = signals
        self._before: dict[int, Any] = {}
        self._process = os.getpid()

    def __enter__(self) -> Self:
        """Install the signal handlers."""
        if threading.current_thread() is threading.main_thread():
            handled = [one for one in self._signals if one != signal.SIGINT or signal.getsignal(one) != signal.SIG_IGN]
            self._before = {signum: signal.signal(signum, self._handle_signal) for signum in handled}
        return self

    def __exit__(self, *error: object) -> None:
        """Restore the previous signal handlers."""
        for signum, before in self._before.items():
            signal.signal(signum, before)

    def check(self, reduced_signum: int | None = None) -> None:
        """Raise if a signal requested to stop: on this process, or with multiple ranks, on any rank.

        Args:
            reduced_signum: The signal that the ranks all-reduced with the last batch, so that all stop after it.

        Raises:
            Interrupted: A signal requested to stop.
        """
        signum = self.signum if dist.get_world_size() == 1 else reduced_signum
        if signum is not None:
            raise Interrupted(signum)

    def _handle_signal(self, signum: int, frame: FrameType | None) -> None:
        if os.getpid() != self._process:
            return  # in a worker that was forked inside the block; the parent handles the signal
        now = time.monotonic()
        if signum == self.signum and now - self._received_at < _COPIES:
            return
        if self.signum is not None:
            signal.signal(signum, signal.SIG_DFL)
            os.kill(os.getpid(), signum)
            return
        self.signum, self._received_at = signum, now
        name = signal.Signals(signum).name
        # Ranks may be one step apart, and stop after the same one.
        step = "this step" if dist.get_world_size() == 1 else "this step or the next"
        message = (
            f"\n{name}: a checkpoint is saved after {step}, then training ends; repeat after a second to end it now.\n"
        )
        # Not sys.stderr, which raises if the signal arrives while the program writes to it.
        with contextlib.suppress(OSError):
            os.write(2, message.encode())
