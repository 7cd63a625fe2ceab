"""Convert schedule times such as ``"0.3dur"`` or ``"10ep"`` to spans of a run (``Horizon``, ``Span``)."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from composer._numbers import positive
from composer.core.time import Time, TimeUnit
from composer.core.timestamp import Timestamp

if TYPE_CHECKING:
    from composer.core.state import State

__all__ = ["Horizon", "Span", "truncate_to_int"]

_FIELDS = {
    TimeUnit.ITERATION: "iteration",
    TimeUnit.EPOCH: "epoch",
    TimeUnit.BATCH: "batch",
    TimeUnit.SAMPLE: "sample",
    TimeUnit.TOKEN: "token",
}


def truncate_to_int(amount: float) -> int:
    """Truncate a product of floats to an integer; a value within rounding error of an integer is that integer.

    Args:
        amount: The product.

    >>> truncate_to_int(0.29 * 100), truncate_to_int(2.7)
    (29, 2)
    """
    nearest = round(amount)
    return nearest if math.isclose(amount, nearest, rel_tol=1e-13) else int(amount)


@dataclass(frozen=True, slots=True)
class Span:
    """An interval of a run.

    Attributes:
        unit: The time unit in which it is counted.
        length: Its length in that unit.
        start: Its start in that unit, counted from the start of the run.

    >>> span = Span(TimeUnit.BATCH, 10, start=5)
    >>> span.stop, span.reached(Timestamp(batch=15))
    (15, True)
    """

    unit: TimeUnit
    length: float
    start: float = 0

    @property
    def stop(self) -> float:
        """The end of the span in its unit, counted from the start of the run."""
        return self.start + self.length

    def reached(self, now: Timestamp) -> bool:
        """Return whether the end has been reached.

        Args:
            now: The timestamp.
        """
        return now.count(self.unit) >= self.stop

    def beginning(self) -> Timestamp:
        """Return the timestamp at which the span begins; only the counter of its unit is set."""
        if self.unit is TimeUnit.SECOND:
            return Timestamp(total_wct=float(self.start))
        return Timestamp(**{_FIELDS[self.unit]: int(self.start)})

    def __str__(self) -> str:
        return f"{self.length:g}{self.unit}"


@dataclass(frozen=True, slots=True)
class Horizon:
    """Converts times to spans of a run, given its duration, the length of an epoch and the schedule ratio.

    A segment of a run that has a separate schedule is a horizon too: its times count from the start of the segment,
    and fractions are fractions of the segment.

    Attributes:
        total: The span of the run or segment, or None if its end is unknown.
        epoch_length: Number of batches in an epoch, or None if unknown. Times in epochs are then counted in epochs,
            so values change at the end of an epoch.
        ratio: Factor by which times are multiplied. Fractions are not, because ``max_duration`` is already scaled.
        origin: The span that ends where the segment begins, or None for a full run.
        followed: Whether another schedule continues after the planned one.
        counts_loader_batches: Whether the batches of an epoch are those of the loader, several of which are joined in a
            step, so that times in batches (steps) cannot be compared with times in epochs.

    >>> horizon = Horizon.of_run("10ep", epoch_length=100)
    >>> horizon.span(Time(3, "ep")), horizon.span(Time(0.25, "dur")).length
    (Span(unit=<TimeUnit.BATCH: 'ba'>, length=300, start=0), 250)
    """

    total: Span | None
    epoch_length: int | None = None
    ratio: float = 1.0
    origin: Span | None = None
    followed: bool = False
    counts_loader_batches: bool = False

    @classmethod
    def of_run(cls, max_duration: Time | str | None, epoch_length: int | None = None, ratio: float = 1.0) -> Horizon:
        """Return the horizon of a run.

        Args:
            max_duration: When the run ends, or None if unknown.
            epoch_length: Number of batches in an epoch.
            ratio: Factor by which times are multiplied.

        Raises:
            ValueError: ``ratio`` is not positive and finite.
        """
        positive("scale_schedule_ratio", ratio)
        if not math.isfinite(ratio):
            raise ValueError(f"scale_schedule_ratio must be finite, but got {ratio!r}.")
        if isinstance(max_duration, str):
            max_duration = Time.from_timestring(max_duration)
        bare = cls(None, epoch_length, 1.0)
        total = None if max_duration is None else bare.span(max_duration)
        return cls(total, epoch_length, ratio)

    @classmethod
    def of(cls, state: State, ratio: float = 1.0) -> Horizon:
        """Return the horizon of the run of a state.

        Args:
            state: The state.
            ratio: Factor by which times are multiplied.
        """
        phase, end = state.train_phase, state.max_duration
        if phase.joins_batches and phase.length is not None and end is not None and end.unit is TimeUnit.EPOCH:
            return replace(cls.of_run(end, phase.length, ratio), counts_loader_batches=True)
        return cls.of_run(end, phase.steps_per_epoch, ratio)

    def time_of(self, state: State) -> Timestamp:
        """Return the timestamp of a run as this horizon counts it.

        Args:
            state: The state of the run.
        """
        phase = state.train_phase
        if not self.counts_loader_batches or phase.length is None:
            return phase.timestamp
        epochs = phase.timestamp.count(TimeUnit.EPOCH)
        return phase.timestamp.copy(batch=epochs * phase.length + min(phase.batches_loaded, phase.length))

    def span(self, time: Time, *, scaled: bool = True) -> Span:
        """Return the span of length ``time`` from the start of the horizon.

        Args:
            time: A time in any unit; amounts of batches, samples and tokens are truncated to integers.
            scaled: Whether ``ratio`` applies.

        Raises:
            ValueError: The time is a fraction of a run of unknown duration, or a segment is counted in a different
                unit.
        """
        if time.unit is TimeUnit.DURATION:
            if self.total is None:
                raise ValueError(self._unknown_length_message(time))
            return replace(self.total, length=_truncated(time.value * self.total.length, self.total.unit))
        unit, amount = time.unit, float(time.value)
        if unit is TimeUnit.BATCH and self.counts_loader_batches:
            raise ValueError(
                f"'{time}' counts steps, but the number of steps in an epoch is unknown, because BatchSizeWarmup joins "
                f"batches of the loader. Use epochs, or a fraction such as '0.1dur'; or pass max_duration in batches."
            )
        if unit is TimeUnit.EPOCH and self.epoch_length is not None:
            unit, amount = TimeUnit.BATCH, amount * self.epoch_length
        if scaled:
            amount *= self.ratio
        if self.origin is not None and self.origin.unit is not unit:
            raise ValueError(
                f"'{time}' counts from a time given in '{self.origin.unit}', which is unknown in '{unit}'. Use the "
                f"same unit for both, or fractions such as '0.3dur'."
            )
        return Span(unit, _truncated(amount, unit), 0 if self.origin is None else self.origin.stop)

    def after(self, span: Span) -> Horizon:
        """Return the segment of the run after ``span``.

        Args:
            span: A span from the start of this horizon.
        """
        total = self.total
        known = total is not None and total.unit is span.unit
        rest = Span(span.unit, max(0, total.stop - span.stop), span.stop) if known and total is not None else None
        return replace(self, total=rest, origin=span)

    def until(self, span: Span) -> Horizon:
        """Return the segment of this horizon up to the end of ``span``.

        Args:
            span: A span in the unit of the start of this horizon.
        """
        start = 0 if self.origin is None else self.origin.stop
        return replace(self, total=Span(span.unit, span.stop - start, start))

    def exceeded_by(self, span: Span) -> bool:
        """Return whether a span ends after the run; False if their units differ.

        Args:
            span: The span.
        """
        return self.total is not None and self.total.unit is span.unit and span.stop > self.total.stop

    def _unknown_length_message(self, time: Time) -> str:
        if self.origin is None:
            return (
                f"'{time}' is a fraction of the run, whose duration is unknown. Set max_duration, or use a time such "
                f"as '1000ba'."
            )
        return (
            f"'{time}' is a fraction of the run after '{self.origin}', but the duration of the run is unknown in "
            f"'{self.origin.unit}'. Use the same unit for both."
        )


def _truncated(amount: float, unit: TimeUnit) -> float:
    """Truncate an amount of batches, samples or tokens to an integer; keep seconds, epochs and iterations."""
    return amount if unit in (TimeUnit.SECOND, TimeUnit.EPOCH, TimeUnit.ITERATION) else truncate_to_int(amount)
