"""Marks in a trace: spans, moments, curves."""

from __future__ import annotations

import functools
import threading
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, ParamSpec, Self, TypeVar, overload

if TYPE_CHECKING:
    from composer.core.state import State
    from composer.profiler.trace_handler import TraceHandler

__all__ = ["Marker"]

P = ParamSpec("P")
R = TypeVar("R")


class Marker:
    """Records a span between :meth:`start` and :meth:`finish`, a moment, or a point of a curve.

    Made by :meth:`.Profiler.marker`. As a context manager or a decorator it records the span of a block or of every
    call. Spans of a thread nest, those of blocks and calls of one marker too: viewers do not show one that ends
    within another that began before it. Each ends in the thread in which it began, and whether it is recorded is
    decided when it begins.

    Args:
        state: The state of the run.
        should_record: ``(state) -> bool``: whether the profiler records now.
        trace_handlers: Who takes the records.
        name: Name in the trace.
        record_instant_on_start: Whether the begin of a span is recorded as a moment too.
        record_instant_on_finish: Whether its end is.
        categories: What it belongs to, for viewers that filter by it.

    >>> from composer import State
    >>> from composer.profiler import Profiler, ProfilerAction, TraceHandler
    >>> class Print(TraceHandler):
    ...     def process_counter_event(self, name, categories, timestamp, wall_clock_time_ns, values):
    ...         print(name, values)
    >>> marker = Marker(
    ...     State(torch.nn.Linear(1, 1)), lambda state: True, [Print()], "queue", False, False, []
    ... )
    >>> marker.counter({"length": 3})
    queue {'length': 3}
    >>> @marker
    ... def double(x):
    ...     return 2 * x
    >>> double(4)
    8
    """

    def __init__(
        self,
        state: State,
        should_record: Callable[[State], bool],
        trace_handlers: Sequence[TraceHandler],
        name: str,
        record_instant_on_start: bool,
        record_instant_on_finish: bool,
        categories: Sequence[str],
    ) -> None:
        self.state = state
        self.should_record = should_record
        self.trace_handlers = trace_handlers
        self.name = name
        self.record_instant_on_start = record_instant_on_start
        self.record_instant_on_finish = record_instant_on_finish
        self.categories = tuple(categories)
        self._open = _OpenSpans()

    def start(self) -> None:
        """Begin a span.

        Raises:
            RuntimeError: This thread has begun one with this marker and not ended it; blocks and calls may nest.
        """
        if self._open.recorded:
            raise RuntimeError(
                f"Marker({self.name!r}).start() is called before finish() of the last one, in this thread. Spans of "
                f"one marker nest as `with marker:`."
            )
        self._begin()

    def _begin(self) -> None:
        recorded = self.should_record(self.state)
        self._open.recorded.append(recorded)
        if recorded:
            self._record_edge(is_start=True)

    def finish(self) -> None:
        """End the span that this thread began last.

        Raises:
            RuntimeError: There is none.
        """
        if not self._open.recorded:
            raise RuntimeError(f"Marker({self.name!r}).finish() is called without start() before, in this thread.")
        if self._open.recorded.pop():
            self._record_edge(is_start=False)

    def instant(self) -> None:
        """Record a moment."""
        if self.should_record(self.state):
            self._record_instant(time.time_ns())

    def counter(self, values: dict[str, float]) -> None:
        """Record a point of one or several curves.

        Args:
            values: The values by the names of the curves; where one is not finite, its curve has a gap.
        """
        if self.should_record(self.state):
            now, timestamp = time.time_ns(), self.state.timestamp
            for handler in self.trace_handlers:
                handler.process_counter_event(self.name, self.categories, timestamp, now, values)

    def __enter__(self) -> Self:
        """Begin a span that lasts for the block."""
        self._begin()
        return self

    def __exit__(self, *error: object) -> None:
        """End the span."""
        self.finish()

    @overload
    def __call__(self, function: None = None) -> Self: ...

    @overload
    def __call__(self, function: Callable[P, R]) -> Callable[P, R]: ...

    def __call__(self, function: Callable[P, R] | None = None) -> Callable[P, R] | Self:
        """Return a function that records the span of each call.

        Args:
            function: What it calls; None, as in ``@marker()``, returns the marker.
        """
        if function is None:
            return self

        @functools.wraps(function)
        def marked(*args: P.args, **kwargs: P.kwargs) -> R:
            with self:
                return function(*args, **kwargs)

        return marked

    def _record_edge(self, *, is_start: bool) -> None:
        now, timestamp = time.time_ns(), self.state.timestamp
        for handler in self.trace_handlers:
            handler.process_duration_event(self.name, self.categories, is_start, timestamp, now)
        if self.record_instant_on_start if is_start else self.record_instant_on_finish:
            self._record_instant(now)

    def _record_instant(self, now: int) -> None:
        for handler in self.trace_handlers:
            handler.process_instant_event(self.name, self.categories, self.state.timestamp, now)


class _OpenSpans(threading.local):
    """For each span of a thread that has begun and not ended, whether it is recorded."""

    def __init__(self) -> None:
        self.recorded: list[bool] = []
