"""How long ``torch.compile`` has compiled in this process: tracing, compiling and recording CUDA graphs."""

from __future__ import annotations

import sys
import time
from typing import Any

__all__ = ["compile_seconds", "watch_compilation"]


class _Watch:
    """Sums the time between the callbacks that torch calls when the first of nested compilations begins and ends."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self._began: float | None = None

    def begin(self, arguments: object) -> None:
        self._began = time.perf_counter()

    def end(self, arguments: object) -> None:
        if self._began is not None:  # otherwise the compilation began before it was watched
            self.seconds += time.perf_counter() - self._began
            self._began = None


_watch = _Watch()


def compile_seconds() -> float:
    """Return the seconds of wall time in which this process compiled since :func:`watch_compilation`.

    >>> compile_seconds() >= 0
    True
    """
    return _watch.seconds


def watch_compilation() -> None:
    """Begin to measure, if ``torch.compile`` was used so far; further calls do nothing, unless torch was reset.

    >>> watch_compilation()
    """
    # Without a use it is not imported, which takes a second.
    module: Any = sys.modules.get("torch._dynamo.callback")
    if module is not None and _watch.begin not in module.callback_handler.start_callbacks:
        module.callback_handler.register_start_callback(_watch.begin)
        module.callback_handler.register_end_callback(_watch.end)
