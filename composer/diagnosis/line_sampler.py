"""A thread that samples which line of the user's code runs, by part of the step."""

from __future__ import annotations

import sys
import threading
from collections import Counter
from collections.abc import Callable
from types import TracebackType
from typing import Any, Self

from composer.diagnosis.user_lines import user_line

__all__ = ["LineSampler"]


class LineSampler:
    """Counts samples of the thread that creates it, by part and by line of the user's code.

    Args:
        part: Returns the part of the step that runs.
        seconds: Time between two samples.

    Attributes:
        counts: The number of samples by part and line; the line is None outside of the user's code.

    >>> with LineSampler(lambda: "data", seconds=0.001) as sampler:
    ...     _ = threading.Event().wait(0.05)
    >>> sampler.total > 0
    True
    """

    def __init__(self, part: Callable[[], str], seconds: float = 0.002) -> None:
        self.counts: Counter[tuple[str, tuple[str, int, str] | None]] = Counter()
        self._part, self._seconds = part, seconds
        self._watched = threading.get_ident()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._sample, name="composer-doctor-sampler", daemon=True)

    @property
    def total(self) -> int:
        """Number of samples."""
        return sum(self.counts.values())

    def __enter__(self) -> Self:
        """Begin to sample."""
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End it."""
        self._stop.set()
        self._thread.join()

    def to_json(self) -> list[dict[str, Any]]:
        """Return the counts in JSON types, the largest first."""
        return [
            {"part": part, "count": count, "file": line and line[0], "line": line and line[1], "in": line and line[2]}
            for (part, line), count in self.counts.most_common()
        ]

    def _sample(self) -> None:
        while not self._stop.wait(self._seconds):
            frame = sys._current_frames().get(self._watched)
            self.counts[self._part(), user_line(frame)] += 1
