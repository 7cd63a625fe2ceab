"""Base class of what receives metrics: terminals, memory, files, experiment trackers."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from composer.core.callback import Callback
from composer.core.hooks import replaces
from composer.core.time import TimeUnit

if TYPE_CHECKING:
    from composer.core.state import State
    from composer.core.timestamp import Timestamp

__all__ = ["LoggerDestination"]

# Reading a member off its enum costs more than the rest of the call.
_BATCH: Final = TimeUnit.BATCH


class LoggerDestination(Callback):
    """Receives what is logged: override the ``log_*`` methods that it understands.

    Metrics are queued where they are computed, on the device, and read in one transfer when the destination is due,
    so that rare deliveries cost a training step nothing: ``__flush_interval__`` of the class is the number of batches
    between them. None is lost or reordered: on delivery there is one call of :meth:`log_metrics` for each time that
    something was logged.

    >>> class Print(LoggerDestination):
    ...     def log_metrics(self, metrics, step=None):
    ...         print(step, metrics)
    >>> from composer import Logger, State
    >>> logger = Logger(State(model=torch.nn.Linear(1, 1)), [Print()])
    >>> logger.log_metrics({"loss": torch.tensor(0.5)})
    0 {'loss': tensor(0.5000)}
    """

    __flush_interval__: int = 1

    @property
    def __logs_here__(self) -> bool:
        """Whether metrics are of use in this process; where they are not, none are kept or read for it."""
        return True

    @property
    def __keeps_traces__(self) -> bool:
        """Whether records of what algorithms did are made for it in every step, without ``Trainer(log_traces=True)``.

        They are for a class that overrides :meth:`log_traces`. Asked when a loop begins.
        """
        return replaces(self, LoggerDestination, "log_traces")

    def __due__(self, state: State) -> bool:
        """Tell whether queued metrics are wanted now; asked once after each training batch.

        Args:
            state: The state, its timestamp advanced already.
        """
        return state.timestamp.count(_BATCH) % self.__flush_interval__ == 0

    def __receive__(self, metrics: dict[str, Any], step: int, timestamp: Timestamp) -> None:
        """Take one delivery; override it instead of :meth:`log_metrics` to get the time of logging too.

        Args:
            metrics: Values by name, as they were logged, tensors on the CPU; losses are Python numbers.
            step: The step given, or the number of batches trained before.
            timestamp: The training time at which it was logged.
        """
        self.log_metrics(metrics, step)

    def log_metrics(self, metrics: dict[str, Any], step: int | None = None) -> None:
        """Take metrics.

        Args:
            metrics: Values by name, as they were logged, tensors on the CPU: what a metric computes is a tensor, a
                loss is a Python number.
            step: Number of batches trained before.
        """

    def log_hyperparameters(self, hyperparameters: dict[str, Any]) -> None:
        """Take hyperparameters.

        Args:
            hyperparameters: Values by name.
        """

    def log_table(
        self, columns: list[str], rows: list[list[Any]], name: str = "Table", step: int | None = None
    ) -> None:
        """Take a table.

        Args:
            columns: The column names.
            rows: One list for each row, as long as ``columns``.
            name: Name of the table.
            step: Number of batches trained before.
        """

    def log_traces(self, traces: dict[str, Any]) -> None:
        """Take records of what algorithms did; a class that overrides this gets one whenever an algorithm has acted.

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
        """Take images.

        Args:
            images: One image (H, W), (C, H, W) or a batch (N, C, H, W), or a sequence of them; numbers in [0, 1].
            name: Name of the group of images.
            channels_last: Whether the channels are the last dimension.
            step: Number of batches trained before.
            masks: Segmentation masks by name, each (N, H, W) or (N, C, H, W).
            mask_class_labels: Names of the classes in the masks.
            use_table: Whether a destination that has tables shows the images in one.
        """

    def upload_file(self, state: State, remote_file_name: str, file_path: Path, *, overwrite: bool) -> None:
        """Take a file.

        Args:
            state: The state of the run.
            remote_file_name: Name under which it is to be kept.
            file_path: Where it lies.
            overwrite: Whether a file of that name may be replaced.
        """

    def download_file(
        self, remote_file_name: str, destination: str, overwrite: bool = False, progress_bar: bool = True
    ) -> None:
        """Fetch a file that was uploaded.

        Args:
            remote_file_name: Name under which it is kept.
            destination: Where to put it.
            overwrite: Whether a file there may be replaced.
            progress_bar: Whether to show the progress.

        Raises:
            NotImplementedError: This destination keeps no files.
        """
        raise NotImplementedError(f"{type(self).__name__} keeps no files, so {remote_file_name!r} cannot be fetched.")

    def can_upload_files(self) -> bool:
        """Tell whether :meth:`upload_file` keeps files."""
        return False

    def __show_notice__(self, text: str) -> bool:
        """Show a line that tells what happens to the run; return whether people see it here, as on a console.

        Args:
            text: The line.
        """
        return False

    def __suspend__(self) -> None:
        """Let go of the terminal, because an exception leaves the loop; the run may go on later."""
