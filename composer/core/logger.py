"""Where metrics go: one logger for a run, any number of destinations."""

from __future__ import annotations

import contextlib
import os
import traceback
import warnings
from collections.abc import Generator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

from composer._secrets.masking import mask_error, mask_text, mask_values
from composer._text import one_of
from composer.core._log_record import Entry, read, snapshot
from composer.core.logger_destination import LoggerDestination
from composer.core.name_placeholders import check_remote_name, check_run_name
from composer.core.run_notices import Notices
from composer.core.time import TimeUnit
from composer.trees import ensure_tuple
from composer.warnings import ComposerWarning

if TYPE_CHECKING:
    from composer.core.state import State

__all__ = ["Logger", "LoggerDestination"]

# Reading a member off its enum costs more than the rest of the call.
_BATCH: Final = TimeUnit.BATCH


class Logger:
    """Passes what is logged on to the destinations.

    While a :class:`.Trainer` fits, metrics are delivered at the end of a batch to the destinations that are due, and
    to all at the end of an epoch, an evaluation and the training. Elsewhere they are delivered at once.

    Args:
        state: The state of the run; its timestamp gives the step.
        destinations: One destination or several.
        on_error: Whether an exception in a destination ends the training ("raise") or becomes a warning, given once
            for each destination ("warn").

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
        self._queues: list[tuple[LoggerDestination, list[Entry]]] = []
        self.destinations = destinations
        self._due: tuple[LoggerDestination, ...] = ()
        self.notices = Notices(self._show)
        self._nan_told = False

    @property
    def destinations(self) -> tuple[LoggerDestination, ...]:
        """Where what is logged goes; set to one destination or several."""
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

    def notice(self, text: str, *, urgent: bool = False) -> None:
        """Say what happens to the run: on the console, in Python's ``logging`` and in the summary, on rank 0.

        Args:
            text: One line; credentials in it are masked.
            urgent: Whether it is a warning, see :meth:`.Notices.tell`.
        """
        self.notices.tell(text, urgent=urgent)

    def log_metrics(self, metrics: Mapping[str, Any], step: int | None = None) -> None:
        """Log values by name.

        Args:
            metrics: Values by name, which reach the destinations as they are now. Tensors stay on their device until a
                destination is due, and reach it as tensors on the CPU.
            step: Where on the axis; the number of batches trained by default.
        """
        if self._queues:
            self.enqueue({name: snapshot(value) for name, value in metrics.items()}, step, as_numbers=False)

    def enqueue(self, metrics: dict[str, Any], step: int | None = None, *, as_numbers: bool = True) -> None:
        """Log values that nobody will change: as :meth:`log_metrics`, without copying them.

        Args:
            metrics: Numbers, or detached tensors.
            step: Where on the axis; the number of batches trained by default.
            as_numbers: Whether tensors of one element reach the destinations as Python numbers, as losses and what
                callbacks measure do; if not, they reach them as tensors on the CPU, as metrics do.
        """
        if not self._queues:
            return
        timestamp = self._state.timestamp
        entry = Entry(metrics, timestamp.count(_BATCH) if step is None else step, timestamp, as_numbers)
        for _, queue in self._queues:
            queue.append(entry)
        if not self.deferred:
            self.flush()

    def only(self, destinations: Sequence[LoggerDestination]) -> Logger:
        """Return a logger that leads to some of the destinations; what they get keeps its order.

        Args:
            destinations: Those to lead to.

        >>> from composer import State
        >>> from composer.loggers import InMemoryLogger
        >>> state, one, two = State(model=torch.nn.Linear(1, 1)), InMemoryLogger(), InMemoryLogger()
        >>> Logger(state, [one, two]).only([two]).log_metrics({"loss": 0.5})
        >>> list(one.data), list(two.data)
        ([], ['loss'])
        """
        part = Logger(self._state, destinations)
        part._queues = [(d, queue) for d, queue in self._queues if d in part.destinations]
        part._on_error, part._failed, part.deferred = self._on_error, self._failed, self.deferred
        part.notices = self.notices
        return part

    def poll(self) -> bool:
        """Ask every destination whether it is due at the batch that just ended; tell whether any is."""
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
        """Hand what is queued to the destinations that :meth:`poll` found due."""
        if self._due:
            due, self._due = self._due, ()
            self._deliver([(d, queue) for d, queue in self._queues if d in due])

    def flush(self) -> None:
        """Hand what is queued to every destination."""
        self._deliver(self._queues)

    def suspend(self) -> None:
        """Have every destination let go of the terminal, because an exception leaves the loop."""
        for destination in self.destinations:
            with self.guard(destination):
                destination.__suspend__()

    def log_hyperparameters(self, parameters: dict[str, Any]) -> None:
        """Log hyperparameters, with ``***`` in the place of passwords, tokens and keys among them.

        Args:
            parameters: Values by name.
        """
        shown = mask_values(parameters)
        for destination in self.destinations:
            with self.guard(destination):
                destination.log_hyperparameters(dict(shown))

    def log_table(
        self, columns: list[str], rows: list[list[Any]], name: str = "Table", step: int | None = None
    ) -> None:
        """Log a table.

        Args:
            columns: The column names.
            rows: One list for each row, as long as ``columns``.
            name: Name of the table.
            step: Where on the axis; the number of batches trained by default.
        """
        step = self._state.timestamp.count(_BATCH) if step is None else step
        for destination in self.destinations:
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
            step: Where on the axis; the number of batches trained by default.
            masks: Segmentation masks by name, each (N, H, W) or (N, C, H, W).
            mask_class_labels: Names of the classes in the masks.
            use_table: Whether a destination that has tables shows the images in one.
        """
        step = self._state.timestamp.count(_BATCH) if step is None else step
        for destination in self.destinations:
            with self.guard(destination):
                destination.log_images(images, name, channels_last, step, masks, mask_class_labels, use_table)

    @property
    def keeps_traces(self) -> bool:
        """Whether a destination keeps records of what algorithms did that nobody has asked for."""
        return any(destination.__keeps_traces__ for destination in self.destinations)

    def log_traces(self, traces: dict[str, Any], *, unasked: bool = False) -> None:
        """Log records of what algorithms did.

        Args:
            traces: Values by name.
            unasked: Whether they go only to the destinations that keep such records in any case.
        """
        for destination in self.destinations:
            if unasked and not destination.__keeps_traces__:
                continue
            with self.guard(destination):
                destination.log_traces(dict(traces))

    def upload_file(self, remote_file_name: Path | str, file_path: Path | str, *, overwrite: bool = False) -> None:
        """Hand a file to every destination that keeps files.

        Args:
            remote_file_name: Name under which it is to be kept; may contain ``{run_name}``.
            file_path: Where it lies.
            overwrite: Whether a file of that name may be replaced.

        Raises:
            ValueError: The name leads out of the place where the files are kept.
        """
        run_name = check_run_name("run_name", self._state.run_name)
        remote_file_name = check_remote_name(
            "remote_file_name", os.fspath(remote_file_name).replace("{run_name}", run_name)
        )
        for destination in self.destinations:
            with self.guard(destination):
                destination.upload_file(self._state, remote_file_name, Path(file_path), overwrite=overwrite)

    def has_file_upload_destination(self) -> bool:
        """Tell whether any destination keeps files."""
        return any(destination.can_upload_files() for destination in self.destinations)

    @contextlib.contextmanager
    def guard(self, destination: LoggerDestination) -> Generator[None]:
        """Turn an exception of a destination into a warning, unless exceptions are asked for.

        Args:
            destination: Whose code runs inside.
        """
        try:
            yield
        except Exception as error:
            self.report(destination, error)

    def report(self, destination: LoggerDestination, error: Exception) -> None:
        """Raise an exception of a destination, or warn of the first.

        Args:
            destination: Whose exception it is.
            error: The exception.
        """
        if self._on_error == "raise":
            error.add_note(f"Raised by the logger {type(destination).__name__}.")
            masked = mask_error(error)
            raise masked from masked.__cause__
        if id(destination) not in self._failed:
            self._failed.add(id(destination))
            message = (
                f"{type(destination).__name__} failed and may miss what was logged; training goes on. "
                f"on_logger_error='raise' would stop it.\n{mask_text(''.join(traceback.format_exception(error)))}"
            )
            warnings.warn(message, ComposerWarning, stacklevel=4)

    def _show(self, text: str) -> bool:
        """Show a line once, though several destinations may write to the same terminal."""
        for destination in self.destinations:
            with self.guard(destination):
                if destination.__show_notice__(text):
                    return True
        return False

    def begin(self) -> None:
        """Begin a training, in which a NaN loss is to be told."""
        self._nan_told = False

    def _deliver(self, queues: Sequence[tuple[LoggerDestination, list[Entry]]]) -> None:
        pending = [entry for _, queue in queues for entry in queue if entry.pending]
        # Losses are looked at here, where they are on the host anyway.
        nan_since = read(pending, self._state.total_loss_dict)
        if nan_since is not None and not self._nan_told:
            self._nan_told = True
            self.notice(f"loss is NaN since batch {nan_since} (NaNMonitor stops a run there)", urgent=True)
        failures: dict[int, tuple[LoggerDestination, Exception]] = {}
        for destination, queue in queues:
            entries = queue.copy()
            queue.clear()
            for entry in entries:
                try:
                    destination.__receive__(dict(entry.metrics), entry.step, entry.timestamp)
                except Exception as error:
                    failures.setdefault(id(destination), (destination, error))
        # Not before everyone has got everything.
        for destination, error in failures.values():
            self.report(destination, error)
