"""The clock of a run: seconds of training only, without evaluations, checkpoints and the start."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from typing import Any, Literal

from composer.exploration.trajectory import Evaluation

__all__ = ["CLOCKS", "Clock", "TrainingClock"]

# What seconds are counted in: wall time, or CPU time of the process, which other load on the host hardly changes.
Clock = Literal["wall", "cpu"]
CLOCKS: Mapping[Clock, Callable[[], float]] = {"wall": time.perf_counter, "cpu": time.process_time}

# Number of steps at the beginning of which some may be slow, as those that compile.
_FIRST = 5


class TrainingClock:
    """Counts seconds of training, over all processes of a run.

    What the first five steps of a process take beyond five of the next, such as the start of data workers and
    compilation, is counted apart as the start.

    Args:
        clock: Returns the time in seconds.

    Attributes:
        steps: Number of optimizer steps, with those of earlier processes.

    >>> ticks = iter([0.0, 9.0, 10.0, 11.0, 12.0])
    >>> clock = TrainingClock(lambda: next(ticks))
    >>> clock.resume()
    >>> for _ in range(4):
    ...     clock.end_step()
    >>> clock.seconds, clock.startup
    (4.0, 8.0)
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self.steps = 0
        self._clock = clock
        self._before = self._startup_before = 0.0  # of earlier processes
        self._earlier: list[Evaluation] = []
        self._laps: list[float] = []  # those that tell what the start takes
        self._lap = self._total = 0.0
        self._since: float | None = None
        self._marks: list[tuple[float, int, Evaluation]] = []

    def resume(self) -> None:
        """Count from now on."""
        self._since = self._clock()

    def pause(self) -> None:
        """Count no more until :meth:`resume`."""
        if self._since is not None:
            self._lap += self._clock() - self._since
            self._since = None

    def end_step(self) -> None:
        """End a step, and count on."""
        now = self._clock()
        if self._since is not None:
            self._lap += now - self._since
            self._since = now
        self.steps += 1
        self._total += self._lap
        if len(self._laps) < 2 * _FIRST:
            self._laps.append(self._lap)
        self._lap = 0.0

    def note(self, batch: int, samples: int, value: float) -> None:
        """Note an evaluation, during which the clock is paused.

        Args:
            batch: Number of optimizer steps.
            samples: Number of samples.
            value: The metric.
        """
        self._marks.append((self._total + self._lap, len(self._laps), Evaluation(0.0, batch, samples, value)))

    @property
    def startup(self) -> float:
        """Seconds of the start, of all processes."""
        return self._startup_before + self._excess

    @property
    def seconds(self) -> float:
        """Seconds of training so far."""
        return self._before + self._total + self._lap - self._excess

    @property
    def num_laps(self) -> int:
        """Number of steps of this process, at most those by which the start is known."""
        return len(self._laps)

    @property
    def evaluations(self) -> list[Evaluation]:
        """The evaluations so far."""
        first = sum(self._laps[: self._number_first])
        found = list(self._earlier)
        for total, laps, each in self._marks:
            # Of an evaluation within the first steps, a part of the excess comes later.
            done = sum(self._laps[: min(laps, self._number_first)])
            excess = self._excess * (done / first if first else 1.0)
            found.append(Evaluation(self._before + total - excess, each.batch, each.samples, each.value))
        return found

    def to_json(self) -> dict[str, Any]:
        """Return the clock in JSON types, for :meth:`go_on`."""
        return {
            "seconds": self.seconds,
            "startup": self.startup,
            "steps": self.steps,
            "evaluations": [[one.seconds, one.batch, one.samples, one.value] for one in self.evaluations],
        }

    def go_on(self, saved: Mapping[str, Any]) -> None:
        """Go on from the clock of an earlier process.

        Args:
            saved: What its :meth:`to_json` returned.
        """
        self._before, self._startup_before, self.steps = saved["seconds"], saved["startup"], saved["steps"]
        self._earlier = [Evaluation(*each) for each in saved["evaluations"]]

    @property
    def _number_first(self) -> int:
        return min(_FIRST, len(self._laps) // 2)

    @property
    def _excess(self) -> float:
        """Seconds of the first steps beyond those of the next."""
        number = self._number_first
        if not number:
            return 0.0
        return max(0.0, sum(self._laps[:number]) - number * statistics.median(self._laps[number:]))
