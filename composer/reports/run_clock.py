"""The clock of a run: samples, tokens and seconds of training at each step, for other x axes of its curves."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

import numpy as np

from composer.history.history import History
from composer.history.series import Series

__all__ = ["AXES", "RunClock"]

# The x axes of curves: how plotly.js labels the axis, and writes its numbers on the axis and in a hover text.
AXES: Final[Mapping[str, Mapping[str, Any]]] = {
    "step": {"title": {"text": "step"}, "tickformat": ",d", "hoverformat": ",d"},
    "sample": {"title": {"text": "sample"}, "tickformat": ",~s", "hoverformat": ",d"},
    "token": {"title": {"text": "token"}, "tickformat": ",~s", "hoverformat": ",d"},
    "seconds": {"title": {"text": "seconds trained"}, "tickformat": ",~g", "hoverformat": ",.6~g"},
}
# Of longer curves there are few, and copies of their times are large.
_LONG: Final = 10_000


class RunClock:
    """What the counters of a run were at each step, from the times of all its values.

    Args:
        history: The run.

    Attributes:
        ends: The first and the last step of the run, (2,).

    >>> loss = Series("loss", np.array([0, 10]), np.zeros(2), seconds=np.array([0.0, 5.0]))
    >>> clock = RunClock(History("night", {"loss": loss}))
    >>> clock.units, clock.at(np.array([0, 5]), "seconds").tolist()
    (['seconds'], [0.0, 2.5])
    """

    def __init__(self, history: History) -> None:
        self.ends = np.array([history.first_step, history.last_step])
        found = {unit: _points(history.series.values(), unit) for unit in AXES if unit != "step"}
        self._points = {unit: points for unit, points in found.items() if len(points[0]) and points[1].max() > 0}

    @property
    def units(self) -> list[str]:
        """The units besides the step that the log has: "sample", "token", "seconds"."""
        return list(self._points)

    def at(self, steps: np.ndarray, unit: str) -> np.ndarray:
        """Return the counter at some steps, interpolated between those at which something was logged.

        Args:
            steps: The steps, (N,).
            unit: One of :attr:`units`.
        """
        known, values = self._points[unit]
        found = np.interp(steps, known, values)
        return found if unit == "seconds" else np.rint(found).astype(np.int64)


def _points(series: Iterable[Series], unit: str) -> tuple[np.ndarray, np.ndarray]:
    """Return steps and what a counter was there, both ascending."""
    steps, values = [np.array([], dtype=np.float64)], [np.array([], dtype=np.float64)]
    seen: set[tuple[bytes, bytes]] = set()
    for one in series:
        times = getattr(one, unit)
        # What is logged together has the same times; of 20,000 metrics, most are.
        key = (one.step.tobytes(), times.tobytes()) if times is not None and len(one) < _LONG else (b"", b"")
        if times is not None and (key == (b"", b"") or key not in seen):
            seen.add(key)
            known = np.isfinite(times)
            steps.append(one.step[known].astype(np.float64))
            values.append(np.asarray(times, dtype=np.float64)[known])
    every, at = np.unique(np.concatenate(steps), return_inverse=True)
    latest = np.full(len(every), -np.inf)
    np.maximum.at(latest, at, np.concatenate(values))
    return every, np.maximum.accumulate(latest)
