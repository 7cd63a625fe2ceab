"""Being asked to stop: the signals of schedulers of machines and of people at the keyboard."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
import time
from collections.abc import Sequence
from types import FrameType, TracebackType
from typing import Any, Self

from composer import dist

__all__ = ["Interrupted", "Interruption"]


# Schedulers signal the launcher and the processes that it started, and the launcher passes on what it gets: within so
# many seconds, the same signal is the same wish.
_COPIES = 1.0


class Interrupted(BaseException):
    """A signal asks to stop, and the state of the run is whole.

    Args:
        signum: The signal.

    >>> Interrupted(signal.SIGTERM)
    Interrupted('SIGTERM')
    """

    def __init__(self, signum: int) -> None:
        super().__init__(signal.Signals(signum).name)
        self.signum = signum

    def __str__(self) -> str:
        return "Ctrl-C" if self.signum == signal.SIGINT else str(self.args[0])

    def leave(self) -> None:
        """Leave as programs do that are stopped by the signal.

        Raises:
            KeyboardInterrupt: It was Ctrl-C; a program that does not catch it dies of SIGINT, exit code 130, without a
                traceback, as what happened has been told.
            SystemExit: It was another; the exit code is 128 and the number of the signal, 143 for SIGTERM.
        """
        if self.signum == signal.SIGINT:
            _keep_quiet()
            raise _marked(KeyboardInterrupt()) from None
        raise SystemExit(128 + self.signum) from None


_TOLD = "_composer_has_told"


def _marked(error: KeyboardInterrupt) -> KeyboardInterrupt:
    setattr(error, _TOLD, True)
    return error


def _keep_quiet() -> None:
    """Have the interpreter end without the traceback of an exception that was told of, and of that one only."""
    before = sys.excepthook
    if getattr(before, "__module__", None) == __name__:
        return

    def hook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        if not getattr(error, _TOLD, False):
            before(kind, error, trace)

    sys.excepthook = hook


class Interruption:
    """While a block runs, notes a signal instead of dying of it; a second one, later, ends the process at once.

    Signals can be noted by the main thread only; in another thread the block runs as without this.

    Args:
        signals: Which.

    >>> with Interruption([signal.SIGTERM]) as interruption:
    ...     os.kill(os.getpid(), signal.SIGTERM)
    ...     interruption.signum == signal.SIGTERM
    True
    """

    def __init__(self, signals: Sequence[int]) -> None:
        self.signum: int | None = None
        self._noted = 0.0
        self._signals = signals
        self._before: dict[int, Any] = {}
        self._process = os.getpid()

    def __enter__(self) -> Self:
        """Begin to note signals."""
        if threading.current_thread() is threading.main_thread():
            self._before = {signum: signal.signal(signum, self._note) for signum in self._signals}
        return self

    def __exit__(self, *error: object) -> None:
        """Go back to what was before."""
        for signum, before in self._before.items():
            signal.signal(signum, before)

    def check(self, told: int | None = None) -> None:
        """Leave the loop if this process was asked to stop, or where there are several, if all know that one was.

        Args:
            told: The signal that all processes were told of with the last batch; they leave at the same place.

        Raises:
            Interrupted: One was.
        """
        signum = self.signum if dist.get_world_size() == 1 else told
        if signum is not None:
            raise Interrupted(signum)

    def _note(self, signum: int, frame: FrameType | None) -> None:
        if os.getpid() != self._process:
            return  # a worker that was forked while the block ran; its parent decides
        now = time.monotonic()
        if signum == self.signum and now - self._noted < _COPIES:
            return
        if self.signum is not None:
            signal.signal(signum, signal.SIG_DFL)
            os.kill(os.getpid(), signum)
            return
        self.signum, self._noted = signum, now
        name = signal.Signals(signum).name
        told = f"\n{name}: a checkpoint is saved after this step, then training ends; again ends it now.\n"
        # Not by sys.stderr, which refuses when the signal comes while the program writes to it.
        with contextlib.suppress(OSError):
            os.write(2, told.encode())
