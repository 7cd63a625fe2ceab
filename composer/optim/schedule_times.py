"""Where times such as ``"0.3dur"`` lie in a run."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from composer._text import positive
from composer.core.time import Time, TimeUnit
from composer.core.timestamp import Timestamp

if TYPE_CHECKING:
    from composer.core.state import State

__all__ = ["Horizon", "Span", "whole_part"]

_FIELDS = {
    TimeUnit.ITERATION: "iteration",
    TimeUnit.EPOCH: "epoch",
    TimeUnit.BATCH: "batch",
    TimeUnit.SAMPLE: "sample",
    TimeUnit.TOKEN: "token",
}


def whole_part(amount: float) -> int:
    """Return the whole part of a product of real numbers; what is whole but for its rounding counts as whole.

    Args:
        amount: The product.

    >>> whole_part(0.29 * 100), whole_part(2.7)
    (29, 2)
    """
    nearest = round(amount)
    return nearest if math.isclose(amount, nearest, rel_tol=1e-13) else int(amount)


@dataclass(frozen=True, slots=True)
class Span:
    """A stretch of a run.

    Attributes:
        unit: What a :class:`.Timestamp` counts along it.
        length: Its length in that unit.
        start: Where it begins, in that unit since the run began.

    >>> span = Span(TimeUnit.BATCH, 10, start=5)
    >>> span.stop, span.reached(Timestamp(batch=15))
    (15, True)
    """

    unit: TimeUnit
    length: float
    start: float = 0

    @property
    def stop(self) -> float:
        """Where it ends, in its unit since the run began."""
        return self.start + self.length

    def reached(self, now: Timestamp) -> bool:
        """Tell whether it is over.

        Args:
            now: The moment.
        """
        return now.count(self.unit) >= self.stop

    def beginning(self) -> Timestamp:
        """Return the moment at which it begins; of its counters only the one of this unit tells."""
        if self.unit is TimeUnit.SECOND:
            return Timestamp(total_wct=float(self.start))
        return Timestamp(**{_FIELDS[self.unit]: int(self.start)})

    def __str__(self) -> str:
        return f"{self.length:g}{self.unit}"


@dataclass(frozen=True, slots=True)
class Horizon:
    """What turns times into places in a run: its length, the length of an epoch, the ratio by which it is scaled.

    A part of a run, on which a schedule of its own runs, is a horizon as well: there times count from where the part
    begins, and shares are shares of the part.

    Attributes:
        whole: The run or the part of it, or None where its end is not known.
        epoch_length: Number of batches in an epoch, or None where it is not known; epochs are then the unit that
            times in epochs are counted in, so that values change where epochs end.
        ratio: By what times are multiplied; shares are not, since ``max_duration`` is scaled already.
        origin: A stretch that ends where the part begins, or None for a run.
        followed: Whether another schedule goes on where the one that is planned ends.

    >>> horizon = Horizon.of_run("10ep", epoch_length=100)
    >>> horizon.span(Time(3, "ep")), horizon.span(Time(0.25, "dur")).length
    (Span(unit=<TimeUnit.BATCH: 'ba'>, length=300, start=0), 250)
    """

    whole: Span | None
    epoch_length: int | None = None
    ratio: float = 1.0
    origin: Span | None = None
    followed: bool = False

    @classmethod
    def of_run(cls, max_duration: Time | str | None, epoch_length: int | None = None, ratio: float = 1.0) -> Horizon:
        """Return the horizon of a run.

        Args:
            max_duration: When the run ends, or None where that is not known.
            epoch_length: Number of batches in an epoch.
            ratio: By what times are multiplied.

        Raises:
            ValueError: ``ratio`` is not positive and finite.
        """
        positive("scale_schedule_ratio", ratio)
        if not math.isfinite(ratio):
            raise ValueError(f"scale_schedule_ratio must be finite, but got {ratio!r}.")
        if isinstance(max_duration, str):
            max_duration = Time.from_timestring(max_duration)
        bare = cls(None, epoch_length, 1.0)
        whole = None if max_duration is None else bare.span(max_duration)
        return cls(whole, epoch_length, ratio)

    @classmethod
    def of(cls, state: State, ratio: float = 1.0) -> Horizon:
        """Return the horizon of the run that a state is about.

        Args:
            state: The state.
            ratio: By what times are multiplied.
        """
        return cls.of_run(state.max_duration, state.train_phase.length, ratio)

    def span(self, time: Time, *, scaled: bool = True) -> Span:
        """Return the stretch from the beginning for as long as ``time``.

        Args:
            time: In any unit; of what is counted only whole amounts, cut towards zero.
            scaled: Whether ``ratio`` applies.

        Raises:
            ValueError: A share is asked for of a run whose length is not known, or a part of a run counts in
                another unit.
        """
        if time.unit is TimeUnit.DURATION:
            if self.whole is None:
                raise ValueError(self._no_share(time))
            return replace(self.whole, length=_counted(time.value * self.whole.length, self.whole.unit))
        unit, amount = time.unit, float(time.value)
        if unit is TimeUnit.EPOCH and self.epoch_length is not None:
            unit, amount = TimeUnit.BATCH, amount * self.epoch_length
        if scaled:
            amount *= self.ratio
        if self.origin is not None and self.origin.unit is not unit:
            raise ValueError(
                f"'{time}' counts from a moment that is given in '{self.origin.unit}', but not known in '{unit}'. Pass "
                f"both in one unit, or shares such as '0.3dur'."
            )
        return Span(unit, _counted(amount, unit), 0 if self.origin is None else self.origin.stop)

    def after(self, span: Span) -> Horizon:
        """Return the part of the run that begins where ``span`` ends.

        Args:
            span: A stretch from the beginning of this horizon.
        """
        whole = self.whole
        known = whole is not None and whole.unit is span.unit
        rest = Span(span.unit, max(0, whole.stop - span.stop), span.stop) if known and whole is not None else None
        return replace(self, whole=rest, origin=span)

    def until(self, span: Span) -> Horizon:
        """Return the part of this horizon that ends where ``span`` ends.

        Args:
            span: A stretch in the unit in which this horizon begins.
        """
        start = 0 if self.origin is None else self.origin.stop
        return replace(self, whole=Span(span.unit, span.stop - start, start))

    def exceeded_by(self, span: Span) -> bool:
        """Tell whether a stretch ends after the run, as far as the two can be compared.

        Args:
            span: The stretch.
        """
        return self.whole is not None and self.whole.unit is span.unit and span.stop > self.whole.stop

    def _no_share(self, time: Time) -> str:
        if self.origin is None:
            return (
                f"'{time}' is a share of the training, whose length is not known. Set max_duration, or give a time "
                f"such as '1000ba'."
            )
        return (
            f"'{time}' is a share of what is left after '{self.origin}', but the training has no length that is known "
            f"in '{self.origin.unit}'. Pass both in one unit."
        )


def _counted(amount: float, unit: TimeUnit) -> float:
    """Cut an amount to whole numbers where only these are counted finely enough."""
    return amount if unit in (TimeUnit.SECOND, TimeUnit.EPOCH, TimeUnit.ITERATION) else whole_part(amount)
