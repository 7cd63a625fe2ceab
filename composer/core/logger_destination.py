"""LoggerDestination, the base class of loggers: consoles, files, in-memory stores and experiment trackers."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from composer.core.callback import Callback
from composer.core.hooks import replaces
from composer.core.time import TimeUnit

if TYPE_CHECKING:
    from composer.core.array_axes import ArrayAxes
    from composer.core.run_event import RunEvent
    from composer.core.state import State
    from composer.core.timestamp import Timestamp

__all__ = ["LoggerDestination"]

# Reading a member off its enum costs more than the rest of the call.
_BATCH: Final = TimeUnit.BATCH


class LoggerDestination(Callback):
    """Receives metrics, hyperparameters, tables, images and files: override the supported ``log_*`` methods.

    Metrics are queued on the device that computed them, and copied to the host in one transfer when the destination is
    due, so that infrequent deliveries do not slow down training steps: ``__flush_interval__`` of the class is the
    number of batches between them. Nothing is lost or reordered: on delivery, :meth:`log_metrics` is called once for
    each logging call.

    >>> class Print(LoggerDestination):
    ...     def log_metrics(self, metrics, step=None):
    ...         print(step, metrics)
    >>> from composer import Logger, State
    >>> logger = Logger(State(model=torch.nn.Linear(1, 1)), [Print()])
    >>> logger.log_metrics({"loss": torch.tensor(0.5)})
    0 {'loss': tensor(0.5000)}
    """

    writes_output = True

    __flush_interval__: int = 1

    @property
    def __logs_here__(self) -> bool:
        """Whether this process delivers metrics to the destination; if not, none are queued or read for it."""
        return True

    @property
    def __keeps_traces__(self) -> bool:
        """Whether algorithm traces are recorded for it in every step, even without ``Trainer(log_traces=True)``.

        True for a class that overrides :meth:`log_traces`. Evaluated when a loop begins.
        """
        return replaces(self, LoggerDestination, "log_traces")

    def __due__(self, state: State) -> bool:
        """Return whether to deliver queued metrics now; called once after each training batch.

        Args:
            state: The state, with the timestamp already advanced.
        """
        return state.timestamp.count(_BATCH) % self.__flush_interval__ == 0

    def __discard__(self) -> None:
        """Write nothing, now or at the close: the trainer only replays a step of a run whose files exist.

        Called before anything is trained. Destinations that open no file before the first loop override it.
        """

    def __resume_complete__(self) -> None:
        """Keep what was logged after the loaded checkpoint: the run is complete, and logs none of it again.

        Called before anything is trained. Destinations whose files of a resumed run end at the checkpoint override it.
        """

    def __receive__(self, metrics: dict[str, Any], step: int, timestamp: Timestamp) -> None:
        """Receive one record; override it instead of :meth:`log_metrics` to also receive the timestamp.

        Args:
            metrics: Values by name, as they were logged, tensors on the CPU; losses are Python numbers.
            step: The given step, or the number of batches trained before.
            timestamp: The timestamp at which it was logged.
        """
        self.log_metrics(metrics, step)

    def __describe_array__(self, name: str, axes: ArrayAxes) -> None:
        """Receive what the rows and columns of a metric stand for whose values are arrays, before the first of them.

        Args:
            name: Name of the metric.
            axes: Names of its classes, rows and columns.
        """

    def __receive_event__(self, event: RunEvent) -> None:
        """Receive an event of the run, such as an evaluation, a checkpoint or a resumption.

        Args:
            event: The event.
        """

    def log_metrics(self, metrics: dict[str, Any], step: int | None = None) -> None:
        """Receive metrics.

        Args:
            metrics: Values by name, as they were logged, tensors on the CPU: metric values are tensors, losses are
                Python numbers.
            step: Number of batches trained before.
        """

    def log_hyperparameters(self, hyperparameters: dict[str, Any]) -> None:
        """Receive hyperparameters.

        Args:
            hyperparameters: Values by name.
        """

    def log_table(
        self, columns: list[str], rows: list[list[Any]], name: str = "Table", step: int | None = None
    ) -> None:
        """Receive a table.

        Args:
            columns: The column names.
            rows: One list for each row, as long as ``columns``.
            name: Name of the table.
            step: Number of batches trained before.
        """

    def log_traces(self, traces: dict[str, Any]) -> None:
        """Receive algorithm traces; a class that overrides this receives one whenever an algorithm ran.

        Args:
            traces: Values by name.
        """

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
        """Receive images.

        Args:
            images: One image (H, W), (C, H, W) or a batch (N, C, H, W), or a sequence of them; numbers in [0, 1].
            name: Name of the group of images.
            channels_last: Whether the channels are the last dimension.
            step: Number of batches trained before.
            masks: Segmentation masks by name, each (N, H, W) or (N, C, H, W).
            mask_class_labels: Names of the classes in the masks.
            use_table: Whether a destination with tables shows the images in a table.
        """

    def upload_file(self, state: State, remote_file_name: str, file_path: Path, *, overwrite: bool) -> None:
        """Upload a file.

        Args:
            state: The state of the run.
            remote_file_name: Name under which to store it.
            file_path: Path of the local file.
            overwrite: Whether to replace an existing file of that name.
        """

    def download_file(
        self, remote_file_name: str, destination: str, overwrite: bool = False, progress_bar: bool = True
    ) -> None:
        """Download an uploaded file.

        Args:
            remote_file_name: Name under which it is stored.
            destination: Path of the downloaded file.
            overwrite: Whether to replace an existing file there.
            progress_bar: Whether to show the progress.

        Raises:
            NotImplementedError: This destination does not store files.
        """
        raise NotImplementedError(
            f"{type(self).__name__} does not store files, so {remote_file_name!r} cannot be downloaded."
        )

    def can_upload_files(self) -> bool:
        """Return whether :meth:`upload_file` stores files."""
        return False

    def __show_notice__(self, text: str) -> bool:
        """Show a run event in one line; return whether a user sees it here, as on a console.

        Args:
            text: The line.
        """
        return False

    def __suspend__(self) -> None:
        """Release the terminal because an exception leaves the loop; the run may continue later."""
