"""Chain learning-rate schedulers one after another: ``SequentialScheduler`` and ``a + b``."""

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
    """Runs schedules one after another, each over its segment of the run.

    Inside a schedule, times count from the start of its segment, and fractions such as the default ``t_max="1dur"`` are
    fractions of the segment. Without milestones, a segment lasts for the ``t_max`` of its schedule; a fraction is then
    of the rest of the run. ``a + b + c`` is ``SequentialScheduler([a, b, c])``.

    Args:
        schedules: The schedules, in order.
        milestones: When each schedule but the first begins, counted from the start of the run.

    Raises:
        TypeError: An argument has the wrong type.
        ValueError: ``schedules`` is empty, or the number of milestones is not one less than that of schedules; when
            the run begins: a schedule would never begin, or has no end, or segments are counted in different units.

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
                    f"milestones must hold the time when each schedule but the first begins: {len(self.schedules) - 1} "
                    f"for {len(self.schedules)} schedules, but got {len(self.milestones)}."
                )

    @property
    def __parts__(self) -> Sequence[ComposerScheduler]:
        """The schedules."""
        return self.schedules

    def __plan__(self, horizon: Horizon) -> Plan:
        """Return the multiplier as a function of the timestamp."""
        segments, stops = self._split(horizon)
        *earlier, last = [
            schedule.__plan__(segment) for schedule, segment in zip(self.schedules, segments, strict=True)
        ]
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
        """Return the span to the end of the last schedule."""
        segments, _ = self._split(horizon)
        last = self.schedules[-1].__end__(segments[-1])
        start = 0 if horizon.origin is None else horizon.origin.stop
        return Span(last.unit, last.stop - start, start)

    def _split(self, horizon: Horizon) -> tuple[list[Horizon], list[Span]]:
        """Return the horizon of each schedule, and the span to the end of each but the last."""
        segments: list[Horizon] = []
        stops: list[Span] = []
        rest = horizon
        for number, schedule in enumerate(self.schedules[:-1]):
            if self.milestones is None:
                segment = replace(rest, followed=True)
                stop = schedule.__end__(segment)
            else:
                stop = horizon.span(self.milestones[number])
                self._check_order(rest, stop)
                segment = rest.until(stop)
            self._check_room(number, horizon, stop)
            segments.append(segment)
            stops.append(stop)
            rest = rest.after(stop)
        return [*segments, rest], stops

    def _check_order(self, rest: Horizon, stop: Span) -> None:
        """Raise if a milestone is before the previous one."""
        before = rest.origin
        if self.milestones and before is not None and (before.unit is not stop.unit or stop.stop < before.stop):
            listed = ", ".join(f"'{milestone}'" for milestone in self.milestones)
            raise ValueError(f"milestones must be counted in one unit and not decrease, but got {listed}.")

    def _check_room(self, number: int, horizon: Horizon, stop: Span) -> None:
        """Raise if a schedule would begin after the run has ended."""
        total = horizon.total
        if total is not None and total.length and total.unit is stop.unit and stop.stop >= total.stop:
            raise ValueError(
                f"{self.schedules[number + 1]!r} would never begin: the schedules before it last until "
                f"{stop.stop:g}{stop.unit}, and the run ends at {total.stop:g}{total.unit}. Give "
                f"{self.schedules[number]!r} a shorter t_max, or use an earlier milestone."
            )
