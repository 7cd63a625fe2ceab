"""``TraceHandler``: base class for custom handlers of profiler records."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from composer.core.callback import Callback

if TYPE_CHECKING:
    from collections.abc import Sequence

    from composer.core.logger import Logger
    from composer.core.state import State
    from composer.core.timestamp import Timestamp
    from composer.profiler.schedule import ProfilerAction

__all__ = ["TraceHandler"]


class TraceHandler(Callback):
    """Receives the spans, instants and counters of a :class:`.Profiler`; override the methods you need.

    A handler is also a callback, and can act at any event. The methods are called in the thread that created the
    record.

    >>> from composer import Engine, State
    >>> from composer.profiler import Profiler, ProfilerAction
    >>> class Print(TraceHandler):
    ...     def process_duration_event(self, name, categories, is_start, timestamp, wall_clock_time_ns):
    ...         print(name, "begins" if is_start else "ends")
    >>> profiler = Profiler(lambda state: ProfilerAction.ACTIVE, Print(), sys_prof_cpu=False)
    >>> profiler.bind_to_state(State(model=torch.nn.Linear(1, 1)))
    >>> with profiler.marker("augment", actions=list(ProfilerAction)):
    ...     pass
    augment begins
    augment ends
    """

    def process_duration_event(
        self, name: str, categories: Sequence[str], is_start: bool, timestamp: Timestamp, wall_clock_time_ns: int
    ) -> None:
        """Handle the start or end of a span.

        Args:
            name: Name of the span; the spans of a thread nest.
            categories: Categories of the span.
            is_start: Whether the span starts.
            timestamp: The training time.
            wall_clock_time_ns: Wall-clock time, in nanoseconds since the epoch.
        """

    def process_instant_event(
        self, name: str, categories: Sequence[str], timestamp: Timestamp, wall_clock_time_ns: int
    ) -> None:
        """Handle an instant event.

        Args:
            name: Name of the event.
            categories: Categories of the event.
            timestamp: The training time.
            wall_clock_time_ns: Wall-clock time, in nanoseconds since the epoch.
        """

    def process_counter_event(
        self,
        name: str,
        categories: Sequence[str],
        timestamp: Timestamp,
        wall_clock_time_ns: int,
        values: dict[str, float],
    ) -> None:
        """Handle the values of one or more counters.

        Args:
            name: Name of the group of counters.
            categories: Categories of the group.
            timestamp: The training time.
            wall_clock_time_ns: Wall-clock time, in nanoseconds since the epoch.
            values: Values by counter name.
        """

    def process_chrome_json_trace_file(self, filepath: Path) -> None:
        """Handle a trace file that another profiler has written for this rank.

        Args:
            filepath: A file in Chrome's JSON trace format, compressed if it ends in ``.gz``.
        """

    def begin_batch(self, action: ProfilerAction, state: State) -> None:
        """Act before a training batch is fetched.

        Args:
            action: The profiler's action in this batch.
            state: The state of the run.
        """

    def save(self, state: State, logger: Logger) -> None:
        """Write the records since the last save; called after the last batch of a window.

        Args:
            state: The state of the run.
            logger: Uploads files to the loggers that store files.
        """

    def clean_up(self) -> None:
        """Remove files that should not be kept; called after all handlers of this rank have saved."""
