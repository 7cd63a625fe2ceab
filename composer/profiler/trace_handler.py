"""Base class of what takes the records of a profiler."""

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
    """Takes the spans, instants and counters that a :class:`.Profiler` records; override what is of interest.

    A handler is a callback as well, and acts at the events of the loop if it has methods of their names. Records come
    from the thread in which they were made.

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
        """Take the begin or the end of a span.

        Args:
            name: Name of the span; those of a thread nest.
            categories: What it belongs to.
            is_start: Whether it begins.
            timestamp: The training time.
            wall_clock_time_ns: The time, in nanoseconds since 1970.
        """

    def process_instant_event(
        self, name: str, categories: Sequence[str], timestamp: Timestamp, wall_clock_time_ns: int
    ) -> None:
        """Take a moment.

        Args:
            name: What happened.
            categories: What it belongs to.
            timestamp: The training time.
            wall_clock_time_ns: The time, in nanoseconds since 1970.
        """

    def process_counter_event(
        self,
        name: str,
        categories: Sequence[str],
        timestamp: Timestamp,
        wall_clock_time_ns: int,
        values: dict[str, float],
    ) -> None:
        """Take a point of one or several curves.

        Args:
            name: Name of the group of curves.
            categories: What it belongs to.
            timestamp: The training time.
            wall_clock_time_ns: The time, in nanoseconds since 1970.
            values: The values by the names of the curves.
        """

    def process_chrome_json_trace_file(self, filepath: Path) -> None:
        """Take a trace that another profiler has written for this process.

        Args:
            filepath: A file in the JSON format of Chrome's traces, compressed if it ends in ``.gz``.
        """

    def begin_batch(self, action: ProfilerAction, state: State) -> None:
        """Act before a training batch is fetched.

        Args:
            action: What the profiler does in this batch.
            state: The state of the run.
        """

    def save(self, state: State, logger: Logger) -> None:
        """Write what was recorded since the last time; called when the last batch of a window has ended.

        Args:
            state: The state of the run.
            logger: Uploads files to the loggers that store files.
        """

    def clean_up(self) -> None:
        """Remove files that are not to be kept; called after all handlers of this process have saved."""
