"""The time line of an accelerator: what it computes or waits for, by part of the step, from CUDA events.

The host runs ahead of an accelerator: what a part takes there is not what it takes on the host. An event is recorded in
the stream at each change of part, and the time between two events is that of the part in between on the device. While
the host is ahead, waiting for data or a slow callback takes no time on the device, as it delays nothing.

After it has reached an event, the device can wait for the host only until the host records the next one, since that one
is work, too: this is an upper bound of the time that the device waits, in which it may have computed as well.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable
from typing import Any, NamedTuple

import torch

__all__ = ["DeviceTimeline"]

# Parts that are shorter on the host get no event of their own.
_SHORTEST = 5e-6


class _Mark(NamedTuple):
    """The end of a part: the host's time, and the event."""

    part: str
    host: float
    event: Any


class DeviceTimeline:
    """Records an event at each change of part; used by :class:`.StepClock`.

    Args:
        make_event: Returns an event with timing, such as ``torch.cuda.Event(enable_timing=True)``.
        synchronize: Waits until the device has done all work.
        clock: Returns the time of the host in seconds.

    >>> DeviceTimeline.of(torch.device("cpu"))
    """

    def __init__(
        self,
        make_event: Callable[[], Any],
        synchronize: Callable[[], None],
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._make_event, self._synchronize, self._clock = make_event, synchronize, clock
        self._steps: list[list[_Mark]] = []
        self._marks: list[_Mark] = []
        self._remembered: _Mark | None = None
        self._begin = self._now("")

    @classmethod
    def of(cls, device: torch.device) -> DeviceTimeline | None:
        """Return the time line of a device, or None where there are no events with timing: it is for CUDA only.

        Args:
            device: The device.

        >>> DeviceTimeline.of(torch.device("cpu"))
        """
        if device.type != "cuda":
            return None
        return cls(lambda: torch.cuda.Event(enable_timing=True), torch.cuda.synchronize)

    def mark(self, part: str) -> None:
        """Note that a part ends.

        Args:
            part: The part.
        """
        last = self._marks[-1] if self._marks else self._begin
        if self._clock() - last.host >= _SHORTEST:
            self._marks.append(self._now(part))

    def remember(self) -> None:
        """Note a moment that may turn out to be the end of a part, in place of the one noted before."""
        self._remembered = self._now("")

    def split(self, part: str) -> None:
        """Note that a part ended at the remembered moment.

        Args:
            part: The part.
        """
        if self._remembered is not None:
            self._marks.append(self._remembered._replace(part=part))
            self._remembered = None

    def end_step(self, part: str) -> None:
        """End a step.

        Args:
            part: The part that ends with it.
        """
        self._marks.append(self._now(part))
        self._steps.append(self._marks)
        self._marks = []

    def restart(self) -> None:
        """Forget the steps so far, and begin now, when the device has done all work."""
        self._synchronize()
        self._steps, self._marks, self._remembered = [], [], None
        self._begin = self._now("")

    def split_of_steps(self) -> tuple[list[dict[str, float]], list[dict[str, float]]]:
        """Return the seconds of the device for each part of each step, and those in which it waited for the host.

        The second are upper bounds.
        """
        self._synchronize()
        splits: list[dict[str, float]] = []
        starved: list[dict[str, float]] = []
        before = self._begin
        for marks in self._steps:
            split: defaultdict[str, float] = defaultdict(float)
            waited: defaultdict[str, float] = defaultdict(float)
            for mark in marks:
                seconds = before.event.elapsed_time(mark.event) / 1e3
                split[mark.part] += seconds
                reached = self._begin.host + self._begin.event.elapsed_time(before.event) / 1e3
                if mark.host > reached:
                    waited[mark.part] += min(mark.host - reached, seconds)
                before = mark
            splits.append(dict(split))
            starved.append(dict(waited))
        return splits, starved

    def _now(self, part: str) -> _Mark:
        event = self._make_event()
        event.record()
        return _Mark(part, self._clock(), event)
