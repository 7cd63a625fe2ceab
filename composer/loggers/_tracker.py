"""Tracker: base class of experiment trackers (W&B, MLflow, Comet, Neptune, Trackio), with resumption of their runs."""

from __future__ import annotations

import logging
import re
import sys
import threading
import time
import warnings
from abc import abstractmethod
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Literal

from composer.core.hooks import replaces
from composer.core.logger import LoggerDestination
from composer.core.time import TimeUnit
from composer.loggers._arrays import ArrayLog
from composer.loggers._images import class_maps, image_arrays, overlay_mask
from composer.loggers._ranks import logs_here, with_rank
from composer.warnings import ComposerWarning

if TYPE_CHECKING:
    import numpy as np

    from composer.core.array_axes import ArrayAxes
    from composer.core.logger import Logger
    from composer.core.state import State
    from composer.core.timestamp import Timestamp

__all__ = ["Outcome", "Tracker", "artifact_name", "end_with_timeout", "rendered_images"]

_log = logging.getLogger(__name__)

Outcome = Literal["finished", "failed", "killed"]


class Tracker(LoggerDestination):
    """Base class of destinations that have a run in an experiment tracker.

    The run begins at ``AFTER_LOAD``, when it is known whether a checkpoint was loaded: if the checkpoint has the same
    run name, the tracker's run is resumed, else a new one begins. Calls before that are queued. If ``AFTER_LOAD`` is
    not fired, the run begins with the first fit, evaluation or prediction, or at the latest on close. It ends after
    all callbacks are closed, as failed if an exception has left the loop.

    Args:
        rank_zero_only: Whether only rank 0 has a run; otherwise each rank has a separate one.

    Attributes:
        close_timeout: How long ending the run may take, in seconds.
    """

    flush_interval: int = 10
    close_timeout: float = 300.0

    def __init__(self, rank_zero_only: bool) -> None:
        self.rank_zero_only = rank_zero_only
        self._open = False
        self._label = ""  # the name of the run on this rank
        self._early: list[tuple[Callable[..., None], tuple[Any, ...]]] = []
        self._traces: dict[str, Any] = {}
        self._arrays = ArrayLog()
        self._saved: dict[str, Any] = {}
        self._outcome: Outcome = "finished"
        self._has_failed = False  # to begin a run; then closing does not try again
        self._logger: Logger | None = None
        self._state: State | None = None

    @abstractmethod
    def _begin(self, state: State, saved: dict[str, Any]) -> None:
        """Begin the run, or resume the one described by ``saved``, a result of :meth:`_identity`."""

    @abstractmethod
    def _end(self, outcome: Outcome) -> None:
        """End the run."""

    @abstractmethod
    def _identity(self) -> dict[str, Any]:
        """Return what is needed to resume the run."""

    @property
    def __flush_interval__(self) -> int:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self.flush_interval

    @property
    def is_active(self) -> bool:
        """Whether this rank has a run."""
        return logs_here(self.rank_zero_only)

    @property
    def __logs_here__(self) -> bool:
        """Whether this rank has a run."""
        return self.is_active

    @property
    def __keeps_traces__(self) -> bool:
        """Whether a subclass overrides ``log_traces`` and so always receives algorithm traces."""
        return replaces(self, Tracker, "log_traces")

    def _ready(self, method: Callable[..., None], *arguments: Any) -> bool:
        """Return whether the run has begun; if not, queue the call until it begins."""
        if not self._open and self.is_active:
            self._early.append((method, arguments))
        return self._open

    def _catch_up(self) -> None:
        """Flush queued metrics, for trackers that require everything in the order of steps."""
        if self._logger is not None:
            self._logger.flush()

    def _start(self, state: State, logger: Logger) -> None:
        """Begin the run, unless it has begun."""
        if self._open or not self.is_active:
            return
        self._logger = logger
        self._label = with_rank(state.run_name, self.rank_zero_only)
        saved, self._saved = self._saved, {}
        self._has_failed = True
        self._begin(state, saved if saved.get("run_name") == self._label else {})
        self._has_failed, self._open = False, True
        early, self._early = self._early, []
        for method, arguments in early:
            method(*arguments)

    def init(self, state: State, logger: Logger) -> None:
        """Remember the run, in case it must begin before a checkpoint is loaded."""
        self._state, self._logger = state, logger

    def _start_early(self) -> None:
        """Begin the run now, if there is a trainer."""
        if self._state is not None and self._logger is not None:
            self._start(self._state, self._logger)

    def after_load(self, state: State, logger: Logger) -> None:
        """Begin the run."""
        self._start(state, logger)

    def fit_start(self, state: State, logger: Logger) -> None:
        """Begin the run if ``AFTER_LOAD`` was not fired."""
        self._outcome = "finished"
        self._start(state, logger)

    def eval_start(self, state: State, logger: Logger) -> None:
        """Begin the run if ``AFTER_LOAD`` was not fired."""
        self._start(state, logger)

    def predict_start(self, state: State, logger: Logger) -> None:
        """Begin the run if ``AFTER_LOAD`` was not fired."""
        self._start(state, logger)

    def __receive__(self, metrics: dict[str, Any], step: int, timestamp: Timestamp) -> None:
        """Log a queued record, together with the algorithm traces until then; keep the arrays in it."""
        traces, self._traces = self._traces, {}
        values = {**traces, **self._arrays.take(metrics, step)}
        if values or not metrics:
            self.log_metrics(values, step)

    def __describe_array__(self, name: str, axes: ArrayAxes) -> None:
        """Log the values of a metric as tables, and matrices also as pictures."""
        if self.is_active:
            self._arrays.describe(name, axes)

    def epoch_end(self, state: State, logger: Logger) -> None:
        """Log the training metrics that are arrays."""
        self._arrays.log(self)

    def eval_end(self, state: State, logger: Logger) -> None:
        """Log the evaluation metrics that are arrays."""
        self._arrays.log(self, str(state.dataloader_label))

    def log_traces(self, traces: dict[str, Any]) -> None:
        """Keep the newest trace of each name; traces are logged with the next metrics."""
        if self.is_active:
            self._traces.update(traces)

    def __suspend__(self) -> None:
        """Record that an exception leaves the loop."""
        self._outcome = _outcome(sys.exception())

    def close(self, state: State, logger: Logger) -> None:
        """Log arrays, pending traces and queued calls; other callbacks may still log."""
        self._arrays.log(self)
        if self._traces:
            self.__receive__({}, state.timestamp.count(TimeUnit.BATCH), state.timestamp)
        if self._early and not self._has_failed:
            self._start(state, logger)
        if self._outcome == "finished":
            self._outcome = _outcome(sys.exception())

    def post_close(self) -> None:
        """End the run, after all callbacks are closed."""
        if self._early and not self._has_failed:  # close() was not called
            self._start_early()
        was_open, self._open = self._open, False
        self._logger = self._state = None
        outcome, self._outcome = self._outcome, "finished"
        if was_open:
            self._end(outcome)

    def state_dict(self) -> dict[str, Any]:
        """Return the identity of this run; before it begins, that of the loaded checkpoint."""
        return {"run_name": self._label, **self._identity()} if self._open else dict(self._saved)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Resume the saved run if it has the name of this one."""
        self._saved = dict(state)


def end_with_timeout(seconds: float, name: str, end: Callable[[], object]) -> None:
    """End a tracker's run, and stop waiting for it after a timeout.

    Args:
        seconds: How long to wait; then it continues in the background.
        name: Name of the tracker, for messages.
        end: The function that ends the run.

    Raises:
        Exception: The exception raised by ``end``.

    >>> end_with_timeout(1.0, "Example", lambda: print("ended"))
    ended
    """
    errors: list[BaseException] = []

    def run() -> None:
        try:
            end()
        except BaseException as error:
            errors.append(error)

    begun = time.monotonic()
    thread = threading.Thread(target=run, name=f"{name} end", daemon=True)
    try:
        thread.start()
    except RuntimeError:  # no thread can start late in the shutdown of the interpreter
        run()
    else:
        thread.join(seconds)
        if thread.is_alive():
            message = (
                f"{name} has not finished {seconds:.0f} s after it was closed; it continues in the background, and "
                f"data that is not delivered when the process ends may be lost."
            )
            warnings.warn(message, ComposerWarning, stacklevel=3)
            return
    if errors:
        raise errors[0]
    _log.info("%s was closed within %.1f s.", name, time.monotonic() - begun)


def rendered_images(
    name: str, images: Any, channels_last: bool = False, masks: Mapping[str, Any] | None = None
) -> list[tuple[str, np.ndarray]]:
    """Return images for trackers without mask support: each image, and a copy overlaid with each of its masks.

    Args:
        name: Name of the group of images.
        images: As for :meth:`.Logger.log_images`.
        channels_last: Whether the channels are the last dimension.
        masks: Segmentation masks by name.

    Returns:
        Names, ``name/index`` and ``name/index/mask``, with uint8 arrays of shape (H, W, C).

    >>> import torch
    >>> found = rendered_images("x", torch.zeros(3, 4, 4), masks={"truth": torch.ones(1, 4, 4).long()})
    >>> [name for name, _ in found]
    ['x/0', 'x/0/truth']
    """
    arrays = image_arrays(images, channels_last)
    maps = class_maps(masks or {}, len(arrays), channels_last)
    found: list[tuple[str, np.ndarray]] = []
    for index, array in enumerate(arrays):
        found.append((f"{name}/{index}", array))
        found.extend((f"{name}/{index}/{mask}", overlay_mask(array, maps[mask][index])) for mask in maps)
    return found


def artifact_name(remote_file_name: str) -> str:
    """Return the artifact name of a file, for trackers that allow only letters, digits, ``_``, ``.`` and ``-``.

    Args:
        remote_file_name: Name of the file; any other character becomes a dot.

    >>> artifact_name("night/checkpoints/ep1-ba20.pt")
    'night.checkpoints.ep1-ba20.pt'
    """
    return re.sub(r"[^A-Za-z0-9_.-]", ".", remote_file_name)


def _outcome(error: BaseException | None) -> Outcome:
    """Return the outcome of a run that ends with an exception, or without one."""
    if error is None or (isinstance(error, SystemExit) and not error.code):
        return "finished"
    return "killed" if isinstance(error, (KeyboardInterrupt, SystemExit)) else "failed"
