"""A thread that samples which line of the user's code runs, by part of the step.

A sample counts for the time since the one before: while a function holds the lock of the interpreter (GIL), such as a
long call into C, the thread cannot sample, and equal weights would favor the operators that release it.
"""

from __future__ import annotations

import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable
from types import TracebackType
from typing import Any, Self

from composer.diagnosis.thread_watch import ThreadWatch
from composer.diagnosis.user_lines import user_line

__all__ = ["LineSampler"]

# Seconds after which a thread in Python code must let the sampler run; by default 5 ms, longer than many steps.
_SWITCH = 1e-4


class LineSampler:
    """Samples the thread that creates it, by part and by line of the user's code.

    Args:
        part: Returns the part of the step that runs.
        seconds: Time between two samples.
        threads: Watches the other threads, at every sample.

    Attributes:
        spent: The seconds by part and line; the line is None outside of the user's code.

    >>> with LineSampler(lambda: "data", seconds=0.001) as sampler:
    ...     _ = threading.Event().wait(0.05)
    >>> sampler.total > 0
    True
    """

    def __init__(self, part: Callable[[], str], seconds: float = 0.002, threads: ThreadWatch | None = None) -> None:
        self.spent: defaultdict[tuple[str, tuple[str, int, str] | None], float] = defaultdict(float)
        self._part, self._seconds, self._threads = part, seconds, threads
        self._watched = threading.get_ident()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._sample, name="composer-doctor-sampler", daemon=True)

    @property
    def total(self) -> float:
        """Seconds that were sampled."""
        return sum(self.spent.values())

    def __enter__(self) -> Self:
        """Begin to sample."""
        self._interval = sys.getswitchinterval()
        sys.setswitchinterval(_SWITCH)
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End it."""
        self._stop.set()
        self._thread.join()
        sys.setswitchinterval(self._interval)

    def to_json(self) -> list[dict[str, Any]]:
        """Return the seconds in JSON types, the largest first."""
        return [
            {"part": part, "seconds": spent, "file": line and line[0], "line": line and line[1], "in": line and line[2]}
            for (part, line), spent in sorted(self.spent.items(), key=lambda item: -item[1])
        ]

    def _sample(self) -> None:
        before = time.perf_counter()
        while not self._stop.wait(self._seconds):
            frames = sys._current_frames()
            place = self._part(), user_line(frames.get(self._watched))
            if self._threads is not None:
                self._threads.sample(frames)
            del frames
            now = time.perf_counter()
            self.spent[place] += now - before
            before = now
