"""End a study on SIGTERM and SIGHUP as on Ctrl-C: its trials are ended, and temporary folders removed."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Generator

from composer._interrupts import between_imports

__all__ = ["Terminated", "terminate_cleanly"]

_SIGNALS = tuple(getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name))


class Terminated(KeyboardInterrupt):
    """A signal asks this process to end.

    Args:
        signum: The signal.

    >>> Terminated(signal.SIGTERM).signum == signal.SIGTERM
    True
    """

    def __init__(self, signum: int) -> None:
        super().__init__(signal.Signals(signum).name)
        self.signum = signum


@contextlib.contextmanager
def terminate_cleanly() -> Generator[None]:
    """Raise :class:`Terminated` in the block on the first of these signals; the second ends the process at once.

    For commands: only the main thread can handle signals.

    >>> import os
    >>> with contextlib.suppress(Terminated), terminate_cleanly():
    ...     os.kill(os.getpid(), signal.SIGTERM)
    """

    @between_imports
    def handle(signum: int) -> None:
        for each in _SIGNALS:
            signal.signal(each, signal.SIG_DFL)
        raise Terminated(signum)

    before = {signum: signal.getsignal(signum) for signum in _SIGNALS}
    for signum, handler in before.items():
        if handler is signal.SIG_DFL:  # nohup ignores SIGHUP
            signal.signal(signum, handle)
    try:
        yield
    finally:
        for signum, handler in before.items():
            if handler is not None:
                signal.signal(signum, handler)
