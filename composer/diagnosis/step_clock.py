"""A clock that splits the wall time of a thread among the parts of a training step, without overlaps or gaps."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable

from composer.diagnosis.device_timeline import DeviceTimeline

__all__ = ["StepClock"]


class StepClock:
    """Adds up the wall time by part. At any moment one part runs: the one that was entered last.

    Args:
        clock: Returns the time in seconds.

    Attributes:
        cost: Seconds that each change of part takes itself, which are left out; see :func:`.seconds_per_change`.
        timeline: The time line of an accelerator, which is told of each change; None on the CPU.
        steps: The seconds of each part, for every step that has ended.
        costs: The seconds that were left out of every step.

    >>> ticks = iter([0.0, 1.0, 2.0, 4.0, 5.0])
    >>> clock = StepClock(lambda: next(ticks))
    >>> clock.enter("forward")
    >>> clock.enter("MixUp")
    >>> clock.leave()
    >>> clock.end_step()
    >>> clock.steps
    [{'rest': 1.0, 'forward': 2.0, 'MixUp': 2.0}]
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self.timeline: DeviceTimeline | None = None
        self.steps: list[dict[str, float]] = []
        self.cost = 0.0
        self.costs: list[float] = []
        self._clock = clock
        self._parts = ["rest"]
        self._times: defaultdict[str, float] = defaultdict(float)
        self._since = self._began = clock()

    @property
    def part(self) -> str:
        """The part that runs."""
        return self._parts[-1]

    def enter(self, part: str) -> None:
        """Begin a part within the present one, whose time stops.

        Args:
            part: Its name.
        """
        self._advance()
        self._parts.append(part)

    def leave(self) -> None:
        """End the part that was entered last; the one around it goes on."""
        self._advance()
        if len(self._parts) > 1:
            self._parts.pop()

    def switch(self, part: str) -> None:
        """End the part that was entered last, and begin another in its place.

        Args:
            part: Its name.
        """
        self._advance()
        self._parts[-1] = part

    def now(self) -> float:
        """Return the time in seconds."""
        return self._clock()

    def split(self, part: str, since: float) -> None:
        """Count the time since a moment as that of another part; the part that was entered last goes on.

        Args:
            part: The other part.
            since: The moment, from :meth:`now`; time that is already counted stays where it is.

        >>> ticks = iter([0.0, 1.0, 3.0, 4.0, 4.0])
        >>> clock = StepClock(lambda: next(ticks))
        >>> clock.enter("backward")
        >>> last_gradient = clock.now()
        >>> clock.split("communication", last_gradient)
        >>> clock.end_step()
        >>> clock.steps
        [{'rest': 1.0, 'backward': 2.0, 'communication': 1.0}]
        """
        now = self._clock()
        since = min(max(since, self._since), now)
        self._times[self._parts[-1]] += since - self._since
        self._times[part] += now - since - self.cost
        self._since = now
        if self.timeline is not None:
            self.timeline.split(self._parts[-1])
            self.timeline.mark(part)

    def end_step(self) -> None:
        """End a step: the times from here on are those of the next one."""
        self._advance()
        step = {part: max(0.0, seconds) for part, seconds in self._times.items()}
        self.steps.append(step)
        self.costs.append(max(0.0, self._since - self._began - sum(step.values())))
        self._began = self._since
        self._times.clear()
        if self.timeline is not None:
            self.timeline.end_step(self._parts[-1])

    def restart(self) -> None:
        """Forget the time since the last step, and the parts that were entered but not left."""
        self._times.clear()
        self._parts = ["rest"]
        self._since = self._began = self._clock()

    def leave_all(self) -> None:
        """End all parts that were entered, as after an exception that was handled."""
        self._advance()
        self._parts = ["rest"]

    def _advance(self) -> None:
        now = self._clock()
        # Half of a change at both ends of a part: half of its cost is before it reads the time, and half after.
        self._times[self._parts[-1]] += now - self._since - self.cost
        self._since = now
        if self.timeline is not None:
            self.timeline.mark(self._parts[-1])
