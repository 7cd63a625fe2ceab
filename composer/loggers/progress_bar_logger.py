"""ProgressBarLogger: show progress bars for training, evaluation and prediction."""

from __future__ import annotations

import math
import time
import weakref
from typing import TYPE_CHECKING, Any, TextIO

from composer import dist
from composer.core.hooks import replaces
from composer.core.logger import LoggerDestination
from composer.core.time import TimeUnit
from composer.loggers._format import checked_stream, config_fields, format_log_data_value, open_stream
from composer.loggers._progress_display import Display, open_display
from composer.loggers._progress_values import Bar, Line

if TYPE_CHECKING:
    from composer.core.logger import Logger
    from composer.core.state import State
    from composer.core.time import Time
    from composer.core.timestamp import Timestamp

__all__ = ["ProgressBarLogger"]

_UNITS = {
    TimeUnit.ITERATION: "iterations",
    TimeUnit.BATCH: "batches",
    TimeUnit.SAMPLE: "samples",
    TimeUnit.TOKEN: "tokens",
    TimeUnit.SECOND: "seconds",
}
# Minimum time between two reads of values from the device, in seconds.
_READ_INTERVAL = 0.25
# Rendering takes at most this fraction of the time, if it is still rendered once a second then; otherwise a larger one.
_RENDER_FRACTION = 0.005
_MAX_RENDER_FRACTION = 0.05


class ProgressBarLogger(LoggerDestination):
    """Shows a bar for each epoch, or one for the run if its duration is not in epochs, and one for each evaluation.

    In a terminal or notebook the bars are updated in place, at most ten times a second, and less often if that takes
    more than 0.5 % of the time, but once a second; each finished bar leaves a line. A narrow terminal drops the
    graphical bar, the rate and the times first; a finished bar keeps its values. A pipe or file receives plain lines:
    about one every ten seconds, and one per finished bar. If bars finish faster, these are limited to one line a second
    after the first ten; the last line of training and of each evaluator is always written. Losses and metrics are read
    from the device at most four times a second. Only local rank 0 of each node shows anything.

    Args:
        stream: "stderr", "stdout" or an open text file.
        log_traces: Whether to print algorithm traces, too.

    Raises:
        TypeError: ``stream`` is not writable.
        ValueError: ``stream`` is an unknown name.

    Attributes:
        show_pbar: Whether this rank shows anything.
        shows_config: Whether to show the hyperparameters; a trainer sets it to False if the console logger prints
            them to the same terminal.

    >>> logger = ProgressBarLogger(stream="stdout")
    >>> logger.show_pbar
    True
    """

    def __init__(self, stream: str | TextIO = "stderr", log_traces: bool = False) -> None:
        self.stream = checked_stream(stream)
        self.should_log_traces = log_traces
        self.shows_config = True
        self.show_pbar = self.__logs_here__
        self._display: Display | None = None
        self._stop: weakref.finalize[..., Any] | None = None
        self._train: Bar | None = None
        self._inner: Bar | None = None  # of an evaluation or prediction
        self._in_fit = False
        self._unit: TimeUnit | None = None  # of the training bar; None if the bar is for an epoch
        self._first_batch = 0
        self._extra_batches = 0  # batches of the loader beyond one per step, which joins several
        self._earlier = 0.0
        self._values: dict[str, Any] = {}
        self._config: dict[str, Any] = {}
        self._next_render = self._next_read = math.inf

    # Logging

    @property
    def __logs_here__(self) -> bool:
        """Whether this rank shows anything: only local rank 0 of each node does."""
        return dist.get_local_rank() == 0

    @property
    def __keeps_traces__(self) -> bool:
        """Whether to show algorithm traces."""
        return self.should_log_traces or replaces(self, ProgressBarLogger, "log_traces")

    def __due__(self, state: State) -> bool:
        """Request values a few times a second."""
        now = time.monotonic()
        if now < self._next_read:
            return False
        self._next_read = now + _READ_INTERVAL
        return True

    def log_metrics(self, metrics: dict[str, Any], step: int | None = None) -> None:
        """Keep the newest values."""
        self._values.update(metrics)

    def log_hyperparameters(self, hyperparameters: dict[str, Any]) -> None:
        """Keep hyperparameters, to show them once when the display opens."""
        self._config.update(hyperparameters)

    def log_traces(self, traces: dict[str, Any]) -> None:
        """Print algorithm traces, with ``log_traces``."""
        if self.should_log_traces:
            for name, value in traces.items():
                self._write(f"[trace] {name}: {format_log_data_value(value)}")

    def log_to_pbar(self, data: dict[str, Any]) -> None:
        """Show values next to the current bar, under the given names.

        Args:
            data: Numbers by name; a name that was shown before is replaced.
        """
        label = "train" if self._inner is None else self._inner.series
        self._values.update({f"metrics/{label}/{name}": value for name, value in data.items()})

    # Training

    def init(self, state: State, logger: Logger) -> None:
        """Determine whether this rank shows anything."""
        self.show_pbar = self.__logs_here__

    def fit_start(self, state: State, logger: Logger) -> None:
        """Open the display."""
        self._end()  # of a loop that ended by an exception
        self._begin()
        self._in_fit = True
        if _bar_unit(state) is not None or state.timestamp.batch_in_epoch.value > 0:
            self._start_train(state)

    def epoch_start(self, state: State, logger: Logger) -> None:
        """Start the bar of an epoch."""
        if self._train is None and self._display is not None:
            self._start_train(state)

    def batch_end(self, state: State, logger: Logger) -> None:
        """Update the bar, if due."""
        self._extra_batches = state.train_phase.extra_batches
        if time.monotonic() >= self._next_render:
            self._advance_train(state)
            self._render()

    def epoch_end(self, state: State, logger: Logger) -> None:
        """Finish the bar of an epoch."""
        if self._unit is None:
            self._finish_train(state)

    def fit_end(self, state: State, logger: Logger) -> None:
        """Finish the bar of the run, and close the display."""
        self._finish_train(state)
        self._end()

    # Evaluation and prediction

    def eval_start(self, state: State, logger: Logger) -> None:
        """Start the bar of an evaluation."""
        label = str(state.dataloader_label)
        for name in self._names_of(label):
            del self._values[name]  # of the previous evaluation
        self._start_inner(state, label)

    def eval_batch_end(self, state: State, logger: Logger) -> None:
        """Update the bar, if due."""
        self._step_inner(state, state.eval_timestamp)

    def eval_end(self, state: State, logger: Logger) -> None:
        """Finish the bar of an evaluation with its metrics."""
        self._finish_inner(state, state.eval_timestamp)

    def predict_start(self, state: State, logger: Logger) -> None:
        """Start the bar of a prediction."""
        self._start_inner(state, "predict")

    def predict_batch_end(self, state: State, logger: Logger) -> None:
        """Update the bar, if due."""
        self._step_inner(state, state.predict_timestamp)

    def predict_end(self, state: State, logger: Logger) -> None:
        """Finish the bar of a prediction."""
        self._finish_inner(state, state.predict_timestamp)

    # Ends and checkpoints

    def __show_notice__(self, text: str) -> bool:
        """Show a line that reports what happens to the run, above the active bars."""
        if self._display is not None:
            self._display.write_fields(text.split(" "), gap=" ")
        elif self.show_pbar:
            stream = open_stream(self.stream)
            stream.write(text + "\n")
            stream.flush()
        return self.show_pbar

    def __suspend__(self) -> None:
        """Close the display; the next fit continues the clock of the bar."""
        earlier = 0.0 if self._train is None else self._train.elapsed
        self._end()
        self._earlier = earlier

    def close(self, state: State, logger: Logger) -> None:
        """Close the display, also after an error."""
        self._end()

    def post_close(self) -> None:
        """Close the display, if closing another logger has opened it again."""
        self._end()

    def state_dict(self) -> dict[str, Any]:
        """Return the seconds spent on the active training bar."""
        return {"elapsed": self._earlier if self._train is None else self._train.elapsed}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue the clock of a saved bar."""
        # Checkpoints of Composer 0.32 hold the state of its own bars, which is not needed.
        self._earlier = float(state.get("elapsed", 0.0))

    # Helpers

    def _begin(self) -> None:
        """Open the display, on ranks that show anything."""
        if self._display is None and self.show_pbar:
            self._display = display = open_display(open_stream(self.stream))
            # Also stop it when the process ends by an exception, or the logger is garbage-collected without close().
            self._stop = weakref.finalize(self, display.stop)
            self._next_read = 0.0
            self._delay(display.interval)
            if self._config and self.shows_config:
                display.write_fields(config_fields(self._config))
                self._config = {}

    def _end(self) -> None:
        """Close the display and drop its bars."""
        self._in_fit = False
        self._train = self._inner = self._display = None
        self._next_render = self._next_read = math.inf
        if self._stop is not None:
            self._stop()
            self._stop = None

    def _write(self, text: str) -> None:
        if self._display is not None:
            self._display.write(text)

    def _render(self) -> None:
        """Render the active bars, and schedule the next render."""
        if self._display is not None:
            begun = time.monotonic()
            self._display.render(self._lines())
            seconds = time.monotonic() - begun
            fewer = min(seconds / _RENDER_FRACTION, 1.0)
            self._delay(max(self._display.interval, fewer, seconds / _MAX_RENDER_FRACTION))

    def _delay(self, seconds: float) -> None:
        """Delay the next render, and the next read of values until shortly before it."""
        self._next_render = time.monotonic() + seconds
        self._next_read = max(self._next_read, self._next_render - 0.1)

    def _write_final(self, line: Line) -> None:
        """Write the line of a finished bar."""
        if self._display is not None:
            self._display.finish(line, self._lines())
            self._delay(self._display.interval)

    def _lines(self) -> list[Line]:
        lines: list[Line] = []
        if self._train is not None:
            lines.append(self._train.line(self._train_values()))
        if self._inner is not None:
            lines.append(self._inner.line({}))
        return lines

    def _start_train(self, state: State) -> None:
        now, duration = state.timestamp, state.max_duration
        self._unit = unit = _bar_unit(state)
        in_epoch = now.batch_in_epoch.value if unit is None else 0
        earlier, self._earlier = self._earlier if in_epoch or unit is not None else 0.0, 0.0
        self._first_batch = now.count(TimeUnit.BATCH) - in_epoch
        self._extra_batches = state.train_phase.extra_batches
        if unit is None:
            total = "" if duration is None else f"/{duration.value}"
            title = f"epoch {str(now.count(TimeUnit.EPOCH) + 1).rjust(max(len(total) - 1, 0))}{total}"
            done = in_epoch + self._extra_batches
            self._train = Bar(title, "batches", earlier, done, in_epoch, series="epoch")
        else:
            self._train = Bar("train", _UNITS[unit], earlier, now.count(unit))

    def _advance_train(self, state: State) -> None:
        """Advance the training bar to the current timestamp."""
        bar, now, duration = self._train, state.timestamp, state.max_duration
        if bar is None:
            return
        batches = now.count(TimeUnit.BATCH) - self._first_batch
        total = bar.total
        if self._unit is None:
            if self._inner is None:  # during an evaluation the length is that of the evaluator's loader
                total = _value(state.dataloader_len)
            bar.advance(batches + self._extra_batches, batches, total)
        else:
            # Stopping early may have changed the unit.
            if duration is not None and duration.unit is self._unit:
                total = duration.value
            bar.advance(now.count(self._unit), batches, total)

    def _finish_train(self, state: State) -> None:
        """Finish the training bar at the current timestamp."""
        self._advance_train(state)
        bar, self._train = self._train, None
        if bar is not None:
            self._write_final(bar.line(self._train_values(), final=True))

    def _start_inner(self, state: State, label: str) -> None:
        self._begin()
        title = label
        if self._train is not None:
            title = f"  {label} at batch {state.timestamp.count(TimeUnit.BATCH)}"
            self._train.pause()
        elif self._in_fit:
            title = f"  {label}"
        self._inner = Bar(title, "batches", series=label)

    def _step_inner(self, state: State, timestamp: Timestamp) -> None:
        if self._inner is not None and time.monotonic() >= self._next_render:
            done = timestamp.count(TimeUnit.BATCH)
            self._inner.advance(done, done, _value(state.dataloader_len))
            self._render()

    def _finish_inner(self, state: State, timestamp: Timestamp) -> None:
        bar, self._inner = self._inner, None
        if bar is None or self._display is None:
            return
        done = timestamp.count(TimeUnit.BATCH)
        bar.advance(done, done, _value(state.dataloader_len))
        label = str(state.dataloader_label)
        values = {_short(name, label): self._values[name] for name in self._names_of(label)}
        if self._train is not None:
            self._train.resume()
        self._write_final(bar.line(values, final=True))
        if not self._in_fit:
            self._end()

    def _names_of(self, label: str) -> list[str]:
        """Return the names of an evaluator's values."""
        return [name for name in self._values if f"/{label}/" in name]

    def _train_values(self) -> dict[str, Any]:
        values = self._values
        names = [name for name in values if name.startswith(("loss/train/", "metrics/train/"))]
        return {_short(name, "train"): values[name] for name in names}


def _bar_unit(state: State) -> TimeUnit | None:
    """Return the unit of the run's bar, or None if each epoch has a separate bar."""
    duration = state.max_duration
    return None if duration is None or duration.unit is TimeUnit.EPOCH else duration.unit


def _value(amount: Time | None) -> float | None:
    return None if amount is None else amount.value


def _short(name: str, label: str) -> str:
    """Return the displayed name: "loss" for the total loss, else what follows the label of the data."""
    return "loss" if name.startswith("loss/") and name.endswith("/total") else name.partition(f"/{label}/")[2]
