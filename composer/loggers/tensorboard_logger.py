"""TensorboardLogger: write scalars, images, tables and hyperparameters as TensorBoard event files."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from composer._lazy import import_extra
from composer._numbers import whole_number
from composer.core.logger import LoggerDestination
from composer.core.time import TimeUnit
from composer.loggers._arrays import ArrayLog
from composer.loggers._format import format_log_data_value
from composer.loggers._images import class_color, class_maps, image_arrays, overlay_mask
from composer.loggers._ranks import logs_here
from composer.loggers._values import as_number
from composer.nested import convert_nested_dict_to_flat_dict

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter

    from composer.core.array_axes import ArrayAxes
    from composer.core.logger import Logger
    from composer.core.state import State
    from composer.core.timestamp import Timestamp

__all__ = ["TensorboardLogger"]


class TensorboardLogger(LoggerDestination):
    """Writes event files for TensorBoard: ``tensorboard --logdir tensorboard_logs``.

    Numbers become scalars at the wall-clock time at which they were logged. Metrics that are arrays, such as confusion
    matrices, become tables, and pictures if matplotlib is installed, at the end of each epoch and evaluation. Other
    values are dropped.
    Hyperparameters appear in the HPARAMS view, with the metrics that were logged before the first evaluation or the end
    of training. Images of equal size become one picture, and masks are overlaid on them; tables become text.

    Each run has the folder ``log_dir/run_name``. A resumed run adds an event file that hides what was logged after the
    checkpoint. Loggers that store files receive the event file whenever it is flushed.

    Args:
        log_dir: Parent folder of the runs' folders; "tensorboard_logs" by default.
        flush_interval: Number of batches between two writes; metrics are also written after each epoch and evaluation.
        rank_zero_only: Whether only rank 0 logs. Otherwise each rank has a folder ``rank0``, ``rank1``, ... in that of
            the run.

    Raises:
        MissingConditionalImportError: The package ``tensorboard`` is not installed.
        ValueError: ``flush_interval`` is not positive.

    >>> import tempfile
    >>> from composer import Engine, Logger, State
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     board = TensorboardLogger(folder)
    ...     state = State(torch.nn.Linear(1, 1), run_name="night", callbacks=[board])
    ...     logger = Logger(state, board)
    ...     engine = Engine(state, logger)
    ...     logger.log_metrics({"loss/train/total": 0.25})
    ...     engine.close()
    ...     [file.name[:19] for file in Path(folder, "night").iterdir()]
    ['events.out.tfevents']
    """

    def __init__(self, log_dir: str | None = None, flush_interval: int = 100, rank_zero_only: bool = True) -> None:
        import_extra("tensorboard", "tensorboard", "TensorboardLogger")
        self.log_dir = "tensorboard_logs" if log_dir is None else str(log_dir)
        self.flush_interval = whole_number("flush_interval", flush_interval, minimum=1)
        self.rank_zero_only = rank_zero_only
        self._is_active = logs_here(rank_zero_only)
        self.writer: SummaryWriter | None = None
        self._early: list[Callable[[SummaryWriter], object]] = []  # writes queued before the writer is open
        self.hyperparameters: dict[str, Any] = {}
        self.current_metrics: dict[str, float] = {}  # the last value of each metric
        self._described = False  # whether the hyperparameters are written
        self._resumed = False
        self._arrays = ArrayLog()
        self._event_file: Path | None = None
        self._state: State | None = None

    @property
    def __flush_interval__(self) -> int:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self.flush_interval

    @property
    def __logs_here__(self) -> bool:
        """Whether this rank logs."""
        return self._is_active

    def __due__(self, state: State) -> bool:
        """Return whether to write after this batch; False on ranks that do not log."""
        return self._is_active and super().__due__(state)

    def __receive__(self, metrics: dict[str, Any], step: int, timestamp: Timestamp) -> None:
        """Write scalars at the time at which they were logged."""
        ago = 0.0
        if self._state is not None:
            ago = max(self._state.timestamp.count(TimeUnit.SECOND) - timestamp.count(TimeUnit.SECOND), 0.0)
        self._scalars(self._arrays.take(metrics, step), step, time.time() - ago)

    def __describe_array__(self, name: str, axes: ArrayAxes) -> None:
        """Write the values of a metric as tables, and matrices also as images."""
        if self._is_active:
            self._arrays.describe(name, axes)

    def log_metrics(self, metrics: dict[str, Any], step: int | None = None) -> None:
        """Write scalars."""
        self._scalars(metrics, step, time.time())

    def log_hyperparameters(self, hyperparameters: dict[str, Any]) -> None:
        """Keep hyperparameters until there are metrics to show with them."""
        self.hyperparameters.update(convert_nested_dict_to_flat_dict(hyperparameters))

    def log_table(
        self, columns: list[str], rows: list[list[Any]], name: str = "Table", step: int | None = None
    ) -> None:
        """Write a table as text."""
        self._do(lambda writer: writer.add_text(name, _markdown(columns, rows), step))

    def log_images(
        self,
        images: Any,
        name: str = "Images",
        channels_last: bool = False,
        step: int | None = None,
        masks: dict[str, Any] | None = None,
        mask_class_labels: dict[int, str] | None = None,
        use_table: bool = False,
    ) -> None:
        """Write images, and again overlaid with each mask; TensorBoard has no image tables."""
        if not self._is_active:
            return
        arrays = image_arrays(images, channels_last)
        self._pictures(name, [overlay_mask(image, np.zeros(image.shape[:2], np.int64)) for image in arrays], step)
        for mask_name, maps in class_maps(masks or {}, len(arrays), channels_last).items():
            overlaid = [overlay_mask(image, mask) for image, mask in zip(arrays, maps, strict=True)]
            self._pictures(f"{name}/{mask_name}", overlaid, step)
        if masks and mask_class_labels:
            colors = {index: "#" + bytes(class_color(index)).hex() for index in mask_class_labels}
            rows = [[index, label, colors[index]] for index, label in mask_class_labels.items()]
            self.log_table(["class", "name", "color"], rows, f"{name}/classes", step)

    def init(self, state: State, logger: Logger) -> None:
        """Remember the run."""
        self._state = state

    def after_load(self, state: State, logger: Logger) -> None:
        """Open the event file, now that it is known whether the run resumes."""
        if self._is_active:
            self._open(state)

    def batch_end(self, state: State, logger: Logger) -> None:
        """Flush the event file, if due."""
        if self.__due__(state):
            self._flush(state, logger)

    def epoch_end(self, state: State, logger: Logger) -> None:
        """Write the training metrics that are arrays, and flush the event file."""
        self._arrays.log(self)
        self._flush(state, logger)

    def eval_end(self, state: State, logger: Logger) -> None:
        """Write the metrics that are arrays and the hyperparameters, and flush the event file."""
        self._arrays.log(self, str(state.dataloader_label))
        self._describe(state)
        self._flush(state, logger)

    def fit_end(self, state: State, logger: Logger) -> None:
        """Write the hyperparameters, and flush the event file."""
        self._describe(state)
        self._flush(state, logger)

    def __suspend__(self) -> None:
        """Flush the event file."""
        if self.writer is not None:
            self.writer.flush()

    def close(self, state: State, logger: Logger) -> None:
        """Write the rest and close the event file."""
        try:
            self._arrays.log(self)
            self._describe(state)
            self._flush(state, logger)
        finally:
            writer, self.writer, self._state = self.writer, None, None
            self.hyperparameters, self.current_metrics, self._described, self._resumed = {}, {}, False, False
            if writer is not None:
                writer.close()

    def state_dict(self) -> dict[str, Any]:
        """Return that this run has begun."""
        return {"begun": True}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Hide what was logged after the checkpoint, when the event file is opened."""
        self._resumed = bool(state.get("begun"))

    def _do(self, action: Callable[[SummaryWriter], object]) -> None:
        """Call a function with the writer, now or once it is open."""
        if not self._is_active:
            return
        if self.writer is None:
            self._early.append(action)
        else:
            action(self.writer)

    def _scalars(self, metrics: dict[str, Any], step: int | None, walltime: float) -> None:
        numbers = {name: number for name, value in metrics.items() if (number := as_number(value)) is not None}
        self.current_metrics.update(numbers)

        def write(writer: SummaryWriter) -> None:
            # This module creates its names when it is imported.
            from tensorboard.compat.proto.summary_pb2 import Summary  # pyright: ignore[reportAttributeAccessIssue]

            # One event for all scalars, rather than one each as add_scalar would write.
            values = [Summary.Value(tag=name, simple_value=number) for name, number in numbers.items()]
            writer._get_file_writer().add_summary(Summary(value=values), step, walltime)

        if numbers:
            self._do(write)

    def _pictures(self, name: str, images: list[np.ndarray], step: int | None) -> None:
        """Write images (H, W, 3) as one picture, or separately if their sizes differ."""
        if len({image.shape for image in images}) == 1:
            self._do(lambda writer: writer.add_images(name, np.stack(images), step, dataformats="NHWC"))
            return

        def write(writer: SummaryWriter) -> None:
            for number, image in enumerate(images):
                writer.add_image(f"{name}/{number}", image, step, dataformats="HWC")

        self._do(write)

    @property
    def __location__(self) -> str | None:
        """Folder of the event files, once the writer is open."""
        return None if self.writer is None else str(self.writer.log_dir)

    def _open(self, state: State) -> SummaryWriter:
        """Open an event file in the folder of the run."""
        if self.writer is None:
            from torch.utils.tensorboard import SummaryWriter

            folder = f"{self.log_dir}/{state.run_name}"
            if not self.rank_zero_only:
                from composer import dist

                folder += f"/rank{dist.get_global_rank()}"
            existing = set(Path(folder).glob("events.out.tfevents.*"))
            # Values of the step at which the checkpoint was saved may have been logged before it.
            purge = state.timestamp.count(TimeUnit.BATCH) + 1 if self._resumed else None
            self.writer = SummaryWriter(folder, purge_step=purge, max_queue=1000)
            self._event_file = next(iter(set(Path(folder).glob("events.out.tfevents.*")) - existing), None)
            early, self._early = self._early, []
            for action in early:
                action(self.writer)
        return self.writer

    def _describe(self, state: State) -> None:
        """Write the hyperparameters, once there are metrics."""
        if self._described or not self._is_active or not self.hyperparameters or not self.current_metrics:
            return
        from torch.utils.tensorboard.summary import hparams

        self._described = True
        values = {name: _hyperparameter(value) for name, value in self.hyperparameters.items()}
        # SummaryWriter.add_hparams would create a separate run below this one.
        for summary in hparams(values, self.current_metrics):
            self._open(state)._get_file_writer().add_summary(summary)

    def _flush(self, state: State, logger: Logger) -> None:
        """Write everything to disk, and upload the event file."""
        if not self._is_active:
            return
        self._open(state).flush()
        if self._event_file is not None and logger.has_file_upload_destination():
            folder = self._event_file.relative_to(Path(self.log_dir)).as_posix()
            logger.upload_file(f"tensorboard_logs/{folder}", self._event_file, overwrite=True)


def _hyperparameter(value: Any) -> float | str | None:
    """Convert a value to what the HPARAMS view can show."""
    if value is None or isinstance(value, (bool, str)):
        return str(value)
    number = as_number(value)
    return str(value) if number is None else number


def _markdown(columns: list[str], rows: list[list[Any]]) -> str:
    """Format a table as Markdown."""
    cells = [columns, ["---"] * len(columns), *([format_log_data_value(cell) for cell in row] for row in rows)]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in cells)
