"""Curves of a metric over the time of training: time to a target, and how far a run is ahead of others."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from composer.exploration.goal import Goal
from composer.exploration.trajectory import Trajectory
from composer.statistics.crossing import first_crossing

__all__ = ["Reference", "increasing", "pooled_noise", "time_to_target", "value_at"]

Floats = npt.NDArray[np.float64]

# The part of a run before the compared time of which evaluations are averaged.
_WINDOW = 1 / 3
# Gains are sought between 1/6 and 6 times as fast.
_SPEEDS = np.linspace(-math.log(6), math.log(6), 721)
# A gain does not change by more while the time doubles, as far as is believed.
_TREND = 0.2
# No computer repeats a time more closely, so that no estimate from a few runs may say so.
_LEAST_NOISE = 0.005


def time_to_target(trajectory: Trajectory, goal: Goal) -> float | None:
    """Return the seconds of training until the target, interpolated between evaluations; None if it is not reached.

    Args:
        trajectory: The run.
        goal: The goal; it has a target.

    >>> from composer.exploration.trajectory import Evaluation
    >>> run = Trajectory((Evaluation(10.0, 1, 1, 0.5), Evaluation(20.0, 2, 2, 0.9)), 20.0, 2)
    >>> time_to_target(run, Goal("accuracy", True, target=0.7))
    15.0
    """
    if goal.target is None or not trajectory.evaluations:
        return None
    times = [one.seconds for one in trajectory.evaluations]
    values = [one.value for one in trajectory.evaluations]
    return first_crossing(times, values, goal.target, "max" if goal.maximize else "min").time


def value_at(trajectory: Trajectory, seconds: float) -> float | None:
    """Return the metric after a time of training, interpolated between evaluations.

    Args:
        trajectory: The run.
        seconds: The time.

    Returns:
        The metric; None before the first evaluation and after the end of the run. Between the last evaluation and the
        end it is that of the last evaluation.

    >>> from composer.exploration.trajectory import Evaluation
    >>> run = Trajectory((Evaluation(10.0, 1, 1, 0.5), Evaluation(20.0, 2, 2, 0.9)), 20.0, 2)
    >>> value_at(run, 15.0), value_at(run, 5.0)
    (0.7, None)
    """
    if not trajectory.evaluations or not trajectory.evaluations[0].seconds <= seconds <= trajectory.seconds:
        return None
    times, values = _arrays(trajectory)
    return float(np.interp(seconds, times, values))


@dataclass(frozen=True)
class Reference:
    """Equal runs with different seeds, with which other runs are compared at equal time.

    The gain of a run is the logarithm of the factor k by which the clock of the reference has to run faster so that its
    mean over the last third of the evaluations is that of the run:

        mean v(t) = mean r(k t)

    r is the mean of the runs, made monotone (isotonic regression), so that a lucky evaluation does not count. For a
    goal that is a quality after a time, the gain is the difference of the means. A method that catches up is worth more
    than one that falls back, so the gain at half the time is used to project it to the end of the reference:

        projected = gain(t) + (gain(t) - gain(t / 2)) log2(end / t)

    Args:
        goal: The goal.
        runs: The runs, at least one, each with at least two evaluations.

    >>> from composer.exploration.trajectory import Evaluation
    >>> run = Trajectory(tuple(Evaluation(t, 1, 1, t / 10) for t in (2.0, 4.0, 6.0, 8.0)), 8.0, 4)
    >>> fast = Trajectory(tuple(Evaluation(t, 1, 1, t / 5) for t in (1.0, 2.0, 3.0)), 3.0, 3)
    >>> round(Reference(Goal("accuracy", True, target=0.8), (run,)).gain(fast, 3.0), 2)
    0.69
    """

    goal: Goal
    runs: tuple[Trajectory, ...]

    @property
    def earliest(self) -> float:
        """Seconds before which runs cannot be compared: that of the second evaluation."""
        return max(run.evaluations[min(1, len(run.evaluations) - 1)].seconds for run in self.runs)

    @property
    def times(self) -> list[float | None]:
        """Seconds to the target of each run."""
        return [time_to_target(run, self.goal) for run in self.runs]

    @functools.cached_property
    def end(self) -> float:
        """Seconds of the runs until their target, or the time of the goal; the geometric mean."""
        times = [time or run.seconds for run, time in zip(self.runs, self.times, strict=True)]
        return math.exp(sum(math.log(time) for time in times) / len(times))

    @functools.cached_property
    def _others(self) -> list[Reference]:
        """The reference without each run in turn."""
        return [Reference(self.goal, self.runs[:one] + self.runs[one + 1 :]) for one in range(len(self.runs))]

    @functools.cached_property
    def _curve(self) -> tuple[Floats, Floats]:
        """Logarithms of times, and the monotone mean of the runs there, such that more is better."""
        arrays = [_arrays(run) for run in self.runs]
        first, last = max(times[0] for times, _ in arrays), min(times[-1] for times, _ in arrays)
        grid = np.unique(np.concatenate([times for times, _ in arrays]))
        grid = grid[(grid >= first) & (grid <= last)]
        sign = 1.0 if self.goal.maximize else -1.0
        mean = np.mean([np.interp(grid, times, values) for times, values in arrays], axis=0)
        return np.log(np.maximum(grid, 1e-9)), increasing(sign * mean)

    def _at(self, logs: Floats) -> Floats:
        """The curve at logarithms of times, extended by its slope at both ends."""
        grid, values = self._curve
        found = np.interp(logs, grid, values)
        if len(grid) > 1:
            middle = len(grid) // 2
            for beyond, end, inner in ((logs > grid[-1], -1, middle - 1), (logs < grid[0], 0, middle)):
                slope = (values[end] - values[inner]) / (grid[end] - grid[inner])
                found = np.where(beyond, values[end] + slope * (logs - grid[end]), found)
        return found

    def gain(self, trajectory: Trajectory, seconds: float) -> float | None:
        """Return how far a run is ahead of the reference at equal time, projected to the end of the reference.

        Args:
            trajectory: The run.
            seconds: Seconds of training up to which it is compared.

        Returns:
            Logarithm of how many times as fast it is, or the difference of the quality, positive if it is better;
            ``-inf`` if it has diverged, and None if it was not evaluated until then.
        """
        now = self._ahead(trajectory, seconds)
        half = self._ahead(trajectory, seconds / 2) if seconds < self.end else None
        if now is None or half is None or not math.isfinite(now - half):
            return now
        trend = now - half
        if self.goal.target is not None:
            trend = min(max(trend, -_TREND), _TREND)
        return now + trend * math.log2(self.end / seconds)

    def _ahead(self, trajectory: Trajectory, seconds: float) -> float | None:
        """How far a run is ahead at a time."""
        times, values = _arrays(trajectory)
        inside = (times <= seconds) & (times > 0)
        if not inside.any():
            return None
        end = float(times[inside][-1])
        inside &= times >= (1 - _WINDOW) * end
        seen = (1.0 if self.goal.maximize else -1.0) * values[inside]
        if not np.isfinite(seen).all():
            return -math.inf
        logs = np.log(times[inside])
        if self.goal.target is None:
            return float(np.mean(seen - self._at(logs)))
        curve = np.mean(self._at(logs[None] + _SPEEDS[:, None]), axis=1)
        return float(np.interp(np.mean(seen), increasing(curve), _SPEEDS))

    def squares(self, seconds: float) -> tuple[float, int]:
        """Return the sum of squares of the gains of the runs about their mean, and its degrees of freedom.

        Args:
            seconds: Seconds up to which they are compared.
        """
        number = len(self.runs)
        if number < 2:
            return 0.0, 0
        found: list[float] = []
        for run, others in zip(self.runs, self._others, strict=True):
            gain = others.gain(run, seconds)
            found.append(gain if gain is not None and math.isfinite(gain) else 0.0)
        # A run differs from the mean of the others by n / (n - 1) of its difference from the mean of all.
        return float(np.sum((np.array(found) * (number - 1) / number) ** 2)), number - 1


def pooled_noise(references: Sequence[Reference], seconds: float) -> tuple[float, int]:
    """Return the standard deviation of the gain of a single run, from runs that are equal, and its degrees of freedom.

    Args:
        references: Groups of equal runs, of which one has at least two.
        seconds: Seconds up to which they are compared; half of it and three quarters count as well.

    Raises:
        ValueError: No group has two runs.

    >>> from composer.exploration.trajectory import Evaluation
    >>> run = Trajectory(tuple(Evaluation(t, 1, 1, t / 10) for t in (2.0, 4.0, 6.0, 8.0)), 8.0, 4)
    >>> pooled_noise([Reference(Goal("accuracy", True, target=0.8), (run, run))], 8.0)
    (0.005, 1)
    """
    freedom = sum(len(reference.runs) - 1 for reference in references)
    if freedom < 1:
        raise ValueError(f"references must hold at least 2 equal runs, but got {len(references)} single runs.")
    parts = (0.5 * seconds, 0.75 * seconds, seconds)
    squares = [sum(reference.squares(part)[0] for reference in references) / freedom for part in parts]
    goal = references[0].goal
    return max(math.sqrt(float(np.mean(squares))), _LEAST_NOISE if goal.target is not None else 1e-9), freedom


def increasing(values: Floats) -> Floats:
    """Return the increasing sequence that is nearest to some values (isotonic regression, pool adjacent violators).

    Args:
        values: The values, (n,).

    >>> increasing(np.array([1.0, 3.0, 2.0, 4.0])).tolist()
    [1.0, 2.5, 2.5, 4.0]

    Paper: Ayer et al. 1955, https://doi.org/10.1214/aoms/1177728423
    """
    if bool(np.all(np.diff(values) >= 0)):
        return values
    blocks: list[tuple[float, int]] = []
    for value in values.tolist():
        mean, number = value, 1
        while blocks and blocks[-1][0] > mean:
            before, count = blocks.pop()
            mean, number = (before * count + mean * number) / (count + number), count + number
        blocks.append((mean, number))
    return np.repeat([mean for mean, _ in blocks], [number for _, number in blocks])


def _arrays(trajectory: Trajectory) -> tuple[Floats, Floats]:
    """Times and values of the evaluations."""
    pairs = [(one.seconds, one.value) for one in trajectory.evaluations]
    array = np.array(pairs, dtype=np.float64).reshape(-1, 2)
    return array[:, 0], array[:, 1]
