"""Logger: queues the metrics of a run and delivers them, with hyperparameters and files, to all destinations."""

from __future__ import annotations

import contextlib
import os
import time
import traceback
import warnings
from collections.abc import Generator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, Literal

from composer._secrets.masking import mask_error, mask_text, mask_values
from composer._text import one_of
from composer.core._log_record import LogRecord, check_value, complete_records, copy_value
from composer.core._snapshot import snapshot
from composer.core.array_axes import ArrayAxes
from composer.core.logger_destination import LoggerDestination
from composer.core.name_placeholders import check_remote_name, check_run_name
from composer.core.run_event import RunEvent
from composer.core.run_notices import Notices
from composer.core.time import TimeUnit
from composer.ledger.category import Category
from composer.trees import ensure_tuple
from composer.warnings import ComposerWarning

if TYPE_CHECKING:
    from composer.core.state import State

__all__ = ["Logger", "LoggerDestination"]

# Reading a member off its enum costs more than the rest of the call.
_BATCH: Final = TimeUnit.BATCH
_LOGGING: Final = Category.LOGGING


class Logger:
    """Delivers metrics, hyperparameters, tables, images and files to the logger destinations.

    While a :class:`.Trainer` fits, metrics are delivered at the end of a batch to the destinations that are due, and
    to all at the end of an epoch, an evaluation and training. Otherwise they are delivered immediately.

    Args:
        state: The state of the run; its timestamp is the default step.
        destinations: One destination or several.
        on_error: Whether an exception in a destination stops training ("raise") or becomes a warning, issued once
            for each destination ("warn").

    Attributes:
        recorder: Receives what is logged, as one of the destinations, but metrics only when they are delivered to
            another: for its sake alone nothing is queued or read from the device.

    >>> from composer import State
    >>> Logger(State(model=torch.nn.Linear(1, 1))).destinations
    ()
    """

    def __init__(
        self,
        state: State,
        destinations: Sequence[LoggerDestination] | LoggerDestination | None = None,
        *,
        on_error: Literal["warn", "raise"] = "warn",
    ) -> None:
        self.deferred = False
        self._state = state
        self._on_error = one_of("on_error", on_error, ("warn", "raise"))
        self._failed: set[int] = set()
        self._queues: list[tuple[LoggerDestination, list[LogRecord]]] = []
        self.destinations = destinations
        self._due: tuple[LoggerDestination, ...] = ()
        self.notices = Notices(self._show)
        self._nan_reported = False
        self.recorder: LoggerDestination | None = None

    @property
    def destinations(self) -> tuple[LoggerDestination, ...]:
        """The logger destinations; set to one destination or several."""
        return self._destinations

    @destinations.setter
    def destinations(self, destinations: Sequence[LoggerDestination] | LoggerDestination | None) -> None:
        given: tuple[LoggerDestination, ...] = ensure_tuple(destinations)
        for destination in given:
            if not isinstance(destination, LoggerDestination):
                raise TypeError(f"loggers must be LoggerDestination objects; got {mask_text(repr(destination))}.")
        queued = {id(destination): queue for destination, queue in self._queues}
        self._destinations = given
        self._queues = [(d, queued.get(id(d), [])) for d in given if d.__logs_here__]
        self._axes: dict[str, ArrayAxes] = {}  # reported anew, to destinations that were added too

    def notice(self, text: str, *, urgent: bool = False, kind: str | None = None) -> None:
        """Report a run event on the console, in Python's ``logging`` and in the summary, on rank 0.

        Args:
            text: One line; credentials in it are masked.
            urgent: Whether it is a warning, see :meth:`.Notices.report`.
            kind: The kind of :class:`.RunEvent` that it also is; None for none.
        """
        self.notices.report(text, urgent=urgent)
        if kind is not None:
            self.log_event(kind, text)

    def log_metrics(self, metrics: Mapping[str, Any], step: int | None = None) -> None:
        """Log values by name.

        Args:
            metrics: Values by name; destinations receive the current values. Tensors stay on their device until a
                destination is due, and arrive as dense tensors on the CPU.
            step: The step; the number of batches trained by default.

        Raises:
            TypeError: A name is not a string, or a tensor is on the device "meta".
            ValueError: A sparse tensor cannot be made dense.
        """
        prepare = copy_value if self._queues else check_value
        self.enqueue({name: prepare(name, value) for name, value in metrics.items()}, step, as_numbers=False)

    def enqueue(
        self, metrics: dict[str, Any], step: int | None = None, *, as_numbers: bool = True, with_counters: bool = False
    ) -> None:
        """Log values without copying them, unlike :meth:`log_metrics`; they must not be modified afterwards.

        Args:
            metrics: Numbers, or detached tensors.
            step: The step; the number of batches trained by default.
            as_numbers: Whether destinations receive tensors of one element as Python numbers, like losses and the
                measurements of callbacks, or as tensors on the CPU, like metrics.
            with_counters: Whether the counters of the current timestamp are logged too, as ``time/batch`` and so on.
        """
        if not self._queues:
            return
        timestamp = self._state.timestamp
        step = timestamp.count(_BATCH) if step is None else step
        entry = LogRecord(metrics, step, timestamp, as_numbers, with_counters)
        for _, queue in self._queues:
            queue.append(entry)
        if not self.deferred:
            self.flush()

    def only(self, destinations: Sequence[LoggerDestination]) -> Logger:
        """Return a logger for some of the destinations; it shares their queues, so that the order is kept.

        Args:
            destinations: The destinations.

        >>> from composer import State
        >>> from composer.loggers import InMemoryLogger
        >>> state, one, two = State(model=torch.nn.Linear(1, 1)), InMemoryLogger(), InMemoryLogger()
        >>> Logger(state, [one, two]).only([two]).log_metrics({"loss": 0.5})
        >>> list(one.data), list(two.data)
        ([], ['loss'])
        """
        subset = Logger(self._state, destinations)
        subset._queues = [(d, queue) for d, queue in self._queues if d in subset.destinations]
        subset._on_error, subset._failed, subset.deferred = self._on_error, self._failed, self.deferred
        subset.notices, subset.recorder = self.notices, self.recorder
        return subset

    def poll(self) -> bool:
        """Determine which destinations are due at the batch that just ended; return whether any is."""
        due: list[LoggerDestination] = []
        for destination in self.destinations:
            try:  # not guard(): this runs in every step
                if destination.__due__(self._state):
                    due.append(destination)
            except Exception as error:
                self.report(destination, error)
        self._due = tuple(due)
        return bool(due)

    def deliver(self) -> None:
        """Deliver queued records to the destinations that :meth:`poll` found due."""
        if self._due:
            due, self._due = self._due, ()
            self._deliver([(d, queue) for d, queue in self._queues if d in due])

    def flush(self) -> None:
        """Deliver queued records to every destination."""
        self._deliver(self._queues)

    def suspend(self) -> None:
        """Make every destination release the terminal because an exception leaves the loop."""
        for destination in self.destinations:
            with self.guard(destination):
                destination.__suspend__()

    def describe_array(self, name: str, axes: ArrayAxes) -> None:
        """Report what the rows and columns of a metric stand for, before its first value is logged.

        Destinations of numbers then show its values as tables, and matrices as pictures.

        Args:
            name: Name of the metric as it is logged.
            axes: Names of its classes, rows and columns.
        """
        if self._axes.get(name) != axes:
            self._axes[name] = axes
            for destination in self._receivers:
                with self.guard(destination):
                    destination.__describe_array__(name, axes)

    def log_event(
        self,
        kind: str,
        text: str = "",
        details: Mapping[str, Any] = MappingProxyType({}),
        *,
        step: int | None = None,
    ) -> None:
        """Log that something happened now, with credentials masked, see :class:`.RunEvent`.

        Args:
            kind: The kind of event.
            text: What happened, in one line.
            details: Further facts by name.
            step: The step at which it happened, if it is noticed later; the number of batches trained by default.
        """
        now = self._state.timestamp
        step, seconds = now.count(_BATCH) if step is None else step, now.count(TimeUnit.SECOND)
        event = RunEvent(kind, step, mask_text(text), seconds, time.time(), mask_values(dict(details)))
        for destination in self._receivers:
            with self.guard(destination):
                destination.__receive_event__(event)

    def log_hyperparameters(self, parameters: dict[str, Any]) -> None:
        """Log hyperparameters, with passwords, tokens and keys replaced by ``***``.

        Args:
            parameters: Values by name; destinations receive the current values.
        """
        shown = mask_values(snapshot(parameters))
        for destination in self._receivers:
            with self.guard(destination):
                destination.log_hyperparameters(dict(shown))

    def log_table(
        self, columns: list[str], rows: list[list[Any]], name: str = "Table", step: int | None = None
    ) -> None:
        """Log a table.

        Args:
            columns: The column names.
            rows: One list for each row, as long as ``columns``; destinations receive the current values.
            name: Name of the table.
            step: The step; the number of batches trained by default.
        """
        step = self._state.timestamp.count(_BATCH) if step is None else step
        columns, rows = snapshot(columns), snapshot(rows)
        for destination in self._receivers:
            with self.guard(destination):
                destination.log_table(columns, rows, name, step)

    def log_images(
        self,
        images: Any,
        name: str = "Images",
        channels_last: bool = False,
        step: int | None = None,
        masks: dict[str, Any] | None = None,
        mask_class_labels: dict[int, str] | None = None,
        use_table: bool = True,
    ) -> None:
        """Log images.

        Args:
            images: One image (H, W), (C, H, W) or a batch (N, C, H, W), or a sequence of them; numbers in [0, 1].
            name: Name of the group of images.
            channels_last: Whether the channels are the last dimension.
            step: The step; the number of batches trained by default.
            masks: Segmentation masks by name, each (N, H, W) or (N, C, H, W).
            mask_class_labels: Names of the classes in the masks.
            use_table: Whether a destination with tables shows the images in a table.
        """
        step = self._state.timestamp.count(_BATCH) if step is None else step
        for destination in self._receivers:
            with self.guard(destination):
                destination.log_images(images, name, channels_last, step, masks, mask_class_labels, use_table)

    @property
    def keeps_traces(self) -> bool:
        """Whether a destination stores algorithm traces even if ``log_traces`` is not set."""
        return any(destination.__keeps_traces__ for destination in self.destinations)

    def log_traces(self, traces: dict[str, Any], *, if_stored: bool = False) -> None:
        """Log algorithm traces.

        Args:
            traces: Values by name.
            if_stored: Whether to log only to destinations that store traces even if ``log_traces`` is not set.
        """
        for destination in self.destinations:
            if if_stored and not destination.__keeps_traces__:
                continue
            with self.guard(destination):
                destination.log_traces(snapshot(traces))

    def upload_file(self, remote_file_name: Path | str, file_path: Path | str, *, overwrite: bool = False) -> None:
        """Upload a file to every destination that stores files.

        Args:
            remote_file_name: Name under which to store it; may contain ``{run_name}``.
            file_path: Path of the local file.
            overwrite: Whether to replace an existing file of that name.

        Raises:
            ValueError: The name points outside of the folder or bucket of the destination.
        """
        run_name = check_run_name("run_name", self._state.run_name)
        remote_file_name = check_remote_name(
            "remote_file_name", os.fspath(remote_file_name).replace("{run_name}", run_name)
        )
        for destination in self.destinations:
            with self.guard(destination):
                destination.upload_file(self._state, remote_file_name, Path(file_path), overwrite=overwrite)

    def has_file_upload_destination(self) -> bool:
        """Return whether any destination stores files."""
        return any(destination.can_upload_files() for destination in self.destinations)

    @contextlib.contextmanager
    def guard(self, destination: LoggerDestination) -> Generator[None]:
        """Turn an exception of a destination into a warning, or raise it with ``on_error="raise"``.

        Args:
            destination: The destination whose code runs inside this context.
        """
        try:
            yield
        except Exception as error:
            self.report(destination, error)

    def report(self, destination: LoggerDestination, error: Exception) -> None:
        """Raise an exception of a destination, or warn about the first one.

        Args:
            destination: The destination that raised it.
            error: The exception.
        """
        if self._on_error == "raise":
            error.add_note(f"Raised by the logger {type(destination).__name__}.")
            masked = mask_error(error)
            raise masked from masked.__cause__
        if id(destination) not in self._failed:
            self._failed.add(id(destination))
            message = (
                f"{type(destination).__name__} failed and may have lost log records; training continues. Pass "
                f"on_logger_error='raise' to stop instead.\n"
                f"{mask_text(''.join(traceback.format_exception(error)))}"
            )
            warnings.warn(message, ComposerWarning, stacklevel=4)

    @property
    def _receivers(self) -> tuple[LoggerDestination, ...]:
        """The destinations, and the recorder."""
        return self._destinations if self.recorder is None else (*self._destinations, self.recorder)

    def _show(self, text: str) -> bool:
        """Show a line once, though several destinations may write to the same terminal."""
        for destination in self.destinations:
            with self.guard(destination):
                if destination.__show_notice__(text):
                    return True
        return False

    def begin(self) -> None:
        """Reset the NaN notice at the start of training."""
        self._nan_reported = False

    def _deliver(self, queues: Sequence[tuple[LoggerDestination, list[LogRecord]]]) -> None:
        pending = [entry for _, queue in queues for entry in queue if entry.pending]
        # Losses are checked for NaN here, where they are on the host anyway.
        nan_since = complete_records(pending)
        if nan_since is not None and not self._nan_reported:
            self._nan_reported = True
            text = f"loss is NaN since batch {nan_since} (NaNMonitor raises an error there)"
            self.notice(text, urgent=True)
            self.log_event("nan", text, step=nan_since)
        failures: dict[int, tuple[LoggerDestination, Exception]] = {}
        if self.recorder is not None:
            with self.guard(self.recorder):
                for entry in dict.fromkeys(pending):  # several destinations may have queued it
                    self.recorder.__receive__(entry.metrics, entry.step, entry.timestamp)
        clock = self._state.clock
        # After the copy, which waits for steps that are still running on the device.
        before = clock.enter(_LOGGING)
        for destination, queue in queues:
            entries = queue.copy()
            queue.clear()
            for entry in entries:
                try:
                    destination.__receive__(dict(entry.metrics), entry.step, entry.timestamp)
                except Exception as error:
                    failures.setdefault(id(destination), (destination, error))
        clock.leave(before)
        # Not before every destination has received every record.
        for destination, error in failures.values():
            self.report(destination, error)
