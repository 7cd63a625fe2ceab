"""Progress bar state and formatting: count, percentage, speed, elapsed and remaining time."""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass, field
from typing import Any

from composer._text import printable
from composer.loggers._format import clock, format_log_data_value

__all__ = ["Bar", "Line"]


@dataclass(frozen=True, slots=True)
class Line:
    """The state of a progress bar at one time.

    Attributes:
        title: Title of the bar, such as "epoch 1/10".
        unit: Unit of the count, in the plural; "seconds" are shown as a clock.
        done: Completed amount, in ``unit``.
        total: Total amount, in ``unit``; None if unknown.
        elapsed: Elapsed time, in seconds.
        rate: Batches per second; None before the first.
        remaining: Estimated remaining time, in seconds; None if unknown.
        values: Metrics by short name.
        final: Whether the bar is finished.
        series: Group of bars that it belongs to, such as "train" for the bars of all epochs, or the label of an
            evaluator.
    """

    title: str
    unit: str
    done: float
    total: float | None
    elapsed: float
    rate: float | None = None
    remaining: float | None = None
    values: dict[str, Any] = field(default_factory=dict)
    final: bool = False
    series: str = ""

    @property
    def count(self) -> str:
        """Completed amount with its unit, such as "150/500 batches"."""
        return self.short_count if self.unit == "seconds" else f"{self.short_count} {self.unit}"

    @property
    def short_count(self) -> str:
        """Completed amount without its unit, such as "150/500"."""
        if self.unit == "seconds":
            return clock(self.done) if self.total is None else f"{clock(self.done)}/{clock(self.total)}"
        done = f"{self.done:,.0f}"
        if self.total is None:
            return done
        total = f"{self.total:,.0f}"
        return f"{done.rjust(len(total))}/{total}"

    @property
    def percent(self) -> str | None:
        """Completed percentage, such as "30%"."""
        return f"{100 * self.done / self.total:.0f}%" if self.total else None

    @property
    def speed(self) -> str | None:
        """Batches per second, or seconds per batch if a batch takes longer than a second."""
        if self.rate is None or self.rate <= 0:
            return None
        return f"{self.rate:.1f} it/s" if self.rate >= 1 else f"{1 / self.rate:.1f} s/it"

    @property
    def times(self) -> str:
        """Elapsed time and, if known, remaining time, such as "0:12 eta 0:28"."""
        unknown = self.final or self.remaining is None
        return clock(self.elapsed) if unknown else f"{clock(self.elapsed)} eta {clock(self.remaining or 0.0)}"

    @property
    def metrics(self) -> list[str]:
        """Each metric with its value, such as "loss 0.1230"."""
        return [f"{name} {value}" for name, value in self.formatted]

    @property
    def formatted(self) -> list[tuple[str, str]]:
        """Each metric and its value as text without control characters."""
        return [(printable(name), printable(format_log_data_value(value))) for name, value in self.values.items()]

    def sentence(self) -> str:
        """Return everything as one line of text.

        >>> Line("epoch 1/10", "batches", 150, 500, 12.2, 12.3, 28.5, {"loss": 0.123}).sentence()
        'epoch 1/10  30%  150/500 batches  loss 0.1230  12.3 it/s  eta 0:28'
        """
        time = self.times if self.final or self.remaining is None else f"eta {clock(self.remaining)}"
        fields = [self.title, self.percent, self.count, *self.metrics, self.speed, time]
        return "  ".join(field for field in fields if field is not None)


class Bar:
    """Tracks a count and measures its speed over about the last half minute; pauses are excluded.

    Args:
        title: Title of the bar.
        unit: Unit of the count, in the plural.
        elapsed: Time spent on it before, in seconds.
        start: The initial count, in ``unit``.
        batches: The initial number of batches.
        series: Group of bars that it belongs to; its title by default.

    >>> bar = Bar("epoch 1/2", "batches")
    >>> bar.advance(3, batches=3, total=10)
    >>> bar.line({}).count
    ' 3/10 batches'
    """

    def __init__(
        self,
        title: str,
        unit: str,
        elapsed: float = 0.0,
        start: float = 0.0,
        batches: float = 0,
        series: str | None = None,
    ) -> None:
        self.title = printable(title)
        self.series = title if series is None else series
        self.unit = unit
        self.done = start
        self.total: float | None = None
        self._earlier = elapsed
        self._begun = time.monotonic()
        self._paused_at: float | None = None
        # At most ten readings a second; only the first and last are used.
        self._readings: deque[tuple[float, float, float]] = deque([(elapsed, start, batches)], maxlen=300)
        self._first_batches = batches

    @property
    def elapsed(self) -> float:
        """Elapsed time, in seconds, without pauses."""
        now = time.monotonic() if self._paused_at is None else self._paused_at
        return now - self._begun + self._earlier

    def pause(self) -> None:
        """Stop the clock, if it runs."""
        if self._paused_at is None:
            self._paused_at = time.monotonic()

    def resume(self) -> None:
        """Continue the clock."""
        if self._paused_at is not None:
            self._begun += time.monotonic() - self._paused_at
            self._paused_at = None

    def advance(self, done: float, batches: float, total: float | None) -> None:
        """Record the current count.

        Args:
            done: Completed amount, in the bar's unit.
            batches: Number of batches completed, counted like the initial ``batches``.
            total: Total amount, in the bar's unit; None if unknown.
        """
        self.done, self.total = done, total
        self._readings.append((self.elapsed, done, batches))

    def line(self, values: dict[str, Any], final: bool = False) -> Line:
        """Return the current state of the bar.

        Args:
            values: Metrics by short name.
            final: Whether the bar is finished; its speed is then the average over its full time.
        """
        rate = remaining = None
        elapsed = self.elapsed
        (t0, done0, batches0), (t1, done1, batches1) = self._readings[0], self._readings[-1]
        if final:
            t0, batches0 = self._earlier, self._first_batches
        if t1 > t0:
            rate = (batches1 - batches0) / (t1 - t0)
        if self.total is not None and done1 > done0:
            at_reading = (self.total - done1) * (t1 - t0) / (done1 - done0)
            remaining = max(at_reading - (elapsed - t1), 0.0)
        return Line(self.title, self.unit, self.done, self.total, elapsed, rate, remaining, values, final, self.series)
