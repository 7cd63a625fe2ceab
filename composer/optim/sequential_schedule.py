"""One schedule after the other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import final

from composer.core.time import Time
from composer.core.timestamp import Timestamp
from composer.optim.schedule import ComposerScheduler, Plan, as_time
from composer.optim.schedule_times import Horizon, Span

__all__ = ["SequentialScheduler"]


@final
class SequentialScheduler(ComposerScheduler):
    """Runs schedules one after the other, each on its own part of the training.

    In each of them times count from where its part begins, and shares such as its default ``t_max="1dur"`` are shares
    of its part. Without milestones a part is as long as its schedule: from where it begins for its ``t_max``, of which
    the shares are shares of all that is left of the training. ``a + b + c`` is ``SequentialScheduler([a, b, c])``.

    Args:
        schedules: The schedules, in order.
        milestones: When each but the first begins, counted from the beginning of the training.

    Raises:
        TypeError: An argument is of another kind.
        ValueError: There is no schedule, or not one milestone less than schedules; when the run begins: a schedule
            would never begin, or has no end, or parts are counted in different units.

    >>> from composer.optim import ConstantScheduler, LinearScheduler
    >>> SequentialScheduler([LinearScheduler(0, 1), LinearScheduler()], ["2ba"]).preview("4ba")
    [0.0, 0.5, 1.0, 0.5, 0.0]
    >>> (ConstantScheduler(0.5, t_max="0.5dur") + LinearScheduler()).preview("4ba")
    [0.5, 0.5, 1.0, 0.5, 0.0]
    """

    def __init__(
        self, schedules: Sequence[ComposerScheduler], milestones: str | Time | Sequence[str | Time] | None = None
    ) -> None:
        self.schedules = tuple(schedules)
        if not self.schedules:
            raise ValueError("schedules must hold at least one schedule, but got none.")
        for schedule in self.schedules:
            if not isinstance(schedule, ComposerScheduler):
                raise TypeError(f"schedules: every entry must be a ComposerScheduler, but got {schedule!r}.")
        self.milestones: tuple[Time, ...] | None = None
        if milestones is not None:
            entries = [milestones] if isinstance(milestones, (str, Time)) else milestones
            self.milestones = tuple(as_time("milestones", entry) for entry in entries)
            if len(self.milestones) != len(self.schedules) - 1:
                raise ValueError(
                    f"milestones must tell when each schedule but the first begins: {len(self.schedules) - 1} for "
                    f"{len(self.schedules)} schedules, but got {len(self.milestones)}."
                )

    @property
    def __parts__(self) -> Sequence[ComposerScheduler]:
        """The schedules."""
        return self.schedules

    def __plan__(self, horizon: Horizon) -> Plan:
        """Return the multiplier as a function of the timestamp."""
        parts, stops = self._divide(horizon)
        *earlier, last = [schedule.__plan__(part) for schedule, part in zip(self.schedules, parts, strict=True)]
        if not stops:
            return last
        unit = stops[0].unit
        ends = [(stop.stop, plan) for stop, plan in zip(stops, earlier, strict=True)]

        def value(now: Timestamp) -> float:
            count = now.count(unit)
            for stop, plan in ends:
                if count < stop:
                    return plan(now)
            return last(now)

        return value

    def __end__(self, horizon: Horizon) -> Span:
        """Return the stretch to the end of the last schedule."""
        parts, _ = self._divide(horizon)
        last = self.schedules[-1].__end__(parts[-1])
        start = 0 if horizon.origin is None else horizon.origin.stop
        return Span(last.unit, last.stop - start, start)

    def _divide(self, horizon: Horizon) -> tuple[list[Horizon], list[Span]]:
        """Return the horizon of each schedule, and where each but the last ends."""
        parts: list[Horizon] = []
        stops: list[Span] = []
        rest = horizon
        for number, schedule in enumerate(self.schedules[:-1]):
            if self.milestones is None:
                part = replace(rest, followed=True)
                stop = schedule.__end__(part)
            else:
                stop = horizon.span(self.milestones[number])
                self._check_order(rest, stop)
                part = rest.until(stop)
            self._check_room(number, horizon, stop)
            parts.append(part)
            stops.append(stop)
            rest = rest.after(stop)
        return [*parts, rest], stops

    def _check_order(self, rest: Horizon, stop: Span) -> None:
        """Refuse a milestone that does not come after the one before."""
        before = rest.origin
        if self.milestones and before is not None and (before.unit is not stop.unit or stop.stop < before.stop):
            listed = ", ".join(f"'{milestone}'" for milestone in self.milestones)
            raise ValueError(f"milestones must be counted in one unit and not decrease, but got {listed}.")

    def _check_room(self, number: int, horizon: Horizon, stop: Span) -> None:
        """Refuse a schedule that would begin after the run."""
        whole = horizon.whole
        if whole is not None and whole.length and whole.unit is stop.unit and stop.stop >= whole.stop:
            raise ValueError(
                f"{self.schedules[number + 1]!r} would never begin: what is before it takes until {stop.stop:g}"
                f"{stop.unit}, and the training ends at {whole.stop:g}{whole.unit}. Give {self.schedules[number]!r} a "
                f"shorter t_max, or an earlier milestone."
            )
