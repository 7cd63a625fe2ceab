"""``Marker``: record custom spans, instants and counters in a profiler trace."""

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
    """Records spans between :meth:`start` and :meth:`finish`, instants, and counters.

    Created by :meth:`.Profiler.marker`. As a context manager or decorator, it records a span for the block or for each
    call. The spans of a thread must nest, including blocks and calls of the same marker: viewers do not show partially
    overlapping spans. Each span ends in the thread in which it started, and whether it is recorded is decided when it
    starts.

    Args:
        state: The state of the run.
        should_record: ``(state) -> bool``, whether the profiler is recording.
        trace_handlers: The handlers of the records.
        name: Name in the trace.
        record_instant_on_start: Whether to also record an instant at the start of a span.
        record_instant_on_finish: Whether to also record an instant at its end.
        categories: Categories, for viewers that filter by them.

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
        """Start a span.

        Raises:
            RuntimeError: This thread has an open span of this marker. Only blocks and calls may nest.
        """
        if self._open.recorded:
            raise RuntimeError(
                f"Marker({self.name!r}).start() was called before finish() of the previous span in this thread. To "
                f"nest spans of one marker, use `with marker:`."
            )
        self._begin()

    def _begin(self) -> None:
        recorded = self.should_record(self.state)
        self._open.recorded.append(recorded)
        if recorded:
            self._record_edge(is_start=True)

    def finish(self) -> None:
        """End the last span started by this thread.

        Raises:
            RuntimeError: This thread has no open span of this marker.
        """
        if not self._open.recorded:
            raise RuntimeError(f"Marker({self.name!r}).finish() was called without start() in this thread.")
        if self._open.recorded.pop():
            self._record_edge(is_start=False)

    def instant(self) -> None:
        """Record an instant event."""
        if self.should_record(self.state):
            self._record_instant(time.time_ns())

    def counter(self, values: dict[str, float]) -> None:
        """Record the values of one or more counters.

        Args:
            values: Values by counter name; a value that is not finite is a gap.
        """
        if self.should_record(self.state):
            now, timestamp = time.time_ns(), self.state.timestamp
            for handler in self.trace_handlers:
                handler.process_counter_event(self.name, self.categories, timestamp, now, values)

    def __enter__(self) -> Self:
        """Start a span for the block."""
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
        """Decorate a function so that each call is recorded as a span.

        Args:
            function: The function; None, as in ``@marker()``, returns the marker.
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
    """For each open span of the current thread, whether it is recorded."""

    def __init__(self) -> None:
        self.recorded: list[bool] = []
