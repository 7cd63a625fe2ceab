"""Show the progress of training and evaluation."""

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
# Least time between two readings of values from the device, in seconds.
_READ_INTERVAL = 0.25
# Drawing takes at most this share of the time.
_DRAWING_SHARE = 0.05


class ProgressBarLogger(LoggerDestination):
    """Shows a bar for each epoch, or one for the run if its length is not in epochs, and one for each evaluation.

    In a terminal and in a notebook the bars are redrawn in place, at most ten times a second, and finished ones leave
    a line each. In a narrow terminal the drawn bar, the rate and the times go first; the values of a finished bar stay.
    A pipe or a file gets plain lines: about one in ten seconds and one for each finished bar. Where bars finish faster,
    these come to at most one line a second after the first ten; the last line of the training and of each evaluator is
    always written. Losses and metrics are read from the device at most four times a second. Only the first process of
    each machine shows anything.

    Args:
        stream: "stderr", "stdout" or an open text file.
        log_traces: Whether to print what algorithms did, too.

    Raises:
        TypeError: ``stream`` cannot be written to.
        ValueError: ``stream`` is another name.

    Attributes:
        show_pbar: Whether this process shows anything.
        shows_config: Whether it shows the hyperparameters; a trainer sets it to False where lines on the same terminal
            do.

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
        self._fitting = False
        self._unit: TimeUnit | None = None  # of the training's bar; None if it is an epoch's
        self._first_batch = 0
        self._earlier = 0.0
        self._values: dict[str, Any] = {}
        self._config: dict[str, Any] = {}
        self._next_draw = self._next_read = math.inf

    # What arrives

    @property
    def __logs_here__(self) -> bool:
        """Whether this process shows anything: the first of its machine does."""
        return dist.get_local_rank() == 0

    @property
    def __keeps_traces__(self) -> bool:
        """Whether what algorithms did is to be shown."""
        return self.should_log_traces or replaces(self, ProgressBarLogger, "log_traces")

    def __due__(self, state: State) -> bool:
        """Ask for values a few times a second."""
        now = time.monotonic()
        if now < self._next_read:
            return False
        self._next_read = now + _READ_INTERVAL
        return True

    def log_metrics(self, metrics: dict[str, Any], step: int | None = None) -> None:
        """Keep the newest values."""
        self._values.update(metrics)

    def log_hyperparameters(self, hyperparameters: dict[str, Any]) -> None:
        """Keep hyperparameters, to show once when the display opens."""
        self._config.update(hyperparameters)

    def log_traces(self, traces: dict[str, Any]) -> None:
        """Print what algorithms did, if asked to."""
        if self.should_log_traces:
            for name, value in traces.items():
                self._write(f"[trace] {name}: {format_log_data_value(value)}")

    def log_to_pbar(self, data: dict[str, Any]) -> None:
        """Show values beside the bar at work, under the names given.

        Args:
            data: Numbers by name; those named like an earlier one replace it.
        """
        label = "train" if self._inner is None else self._inner.series
        self._values.update({f"metrics/{label}/{name}": value for name, value in data.items()})

    # Training

    def init(self, state: State, logger: Logger) -> None:
        """Decide whether this process shows anything."""
        self.show_pbar = self.__logs_here__

    def fit_start(self, state: State, logger: Logger) -> None:
        """Open the display."""
        self._end()  # of a loop that an exception cut off unnoticed
        self._begin()
        self._fitting = True
        if _bar_unit(state) is not None or state.timestamp.batch_in_epoch.value > 0:
            self._start_train(state)

    def epoch_start(self, state: State, logger: Logger) -> None:
        """Begin the bar of an epoch."""
        if self._train is None and self._display is not None:
            self._start_train(state)

    def batch_end(self, state: State, logger: Logger) -> None:
        """Redraw, if it is time."""
        if time.monotonic() >= self._next_draw:
            self._advance_train(state)
            self._draw()

    def epoch_end(self, state: State, logger: Logger) -> None:
        """Leave the line of an epoch."""
        if self._unit is None:
            self._finish_train(state)

    def fit_end(self, state: State, logger: Logger) -> None:
        """Leave the line of a run and close the display."""
        self._finish_train(state)
        self._end()

    # Evaluation and prediction

    def eval_start(self, state: State, logger: Logger) -> None:
        """Begin the bar of an evaluation."""
        label = str(state.dataloader_label)
        for name in self._of(label):
            del self._values[name]  # of the evaluation before
        self._start_inner(state, label)

    def eval_batch_end(self, state: State, logger: Logger) -> None:
        """Redraw, if it is time."""
        self._step_inner(state, state.eval_timestamp)

    def eval_end(self, state: State, logger: Logger) -> None:
        """Leave the line of an evaluation with its metrics."""
        self._finish_inner(state, state.eval_timestamp)

    def predict_start(self, state: State, logger: Logger) -> None:
        """Begin the bar of a prediction."""
        self._start_inner(state, "predict")

    def predict_batch_end(self, state: State, logger: Logger) -> None:
        """Redraw, if it is time."""
        self._step_inner(state, state.predict_timestamp)

    def predict_end(self, state: State, logger: Logger) -> None:
        """Leave the line of a prediction."""
        self._finish_inner(state, state.predict_timestamp)

    # Ends and checkpoints

    def __show_notice__(self, text: str) -> bool:
        """Show a line that tells what happens to the run, above the bars at work."""
        if self._display is not None:
            self._display.write_fields(text.split(" "), gap=" ")
        elif self.show_pbar:
            stream = open_stream(self.stream)
            stream.write(text + "\n")
            stream.flush()
        return self.show_pbar

    def __suspend__(self) -> None:
        """Close the display where it stands; the next fit goes on with the clock of the bar."""
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
        """Return the time spent on the bar at work, in seconds."""
        return {"elapsed": self._earlier if self._train is None else self._train.elapsed}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on with the clock of a bar that was saved."""
        # Checkpoints of the predecessor hold the state of its own bars, of which nothing is needed.
        self._earlier = float(state.get("elapsed", 0.0))

    # Helpers

    def _begin(self) -> None:
        """Open the display, in the processes that show anything."""
        if self._display is None and self.show_pbar:
            self._display = display = open_display(open_stream(self.stream))
            # Also at the end of a process that an exception ends, and when a run is forgotten without close().
            self._stop = weakref.finalize(self, display.stop)
            self._next_read = 0.0
            self._wait(display.interval)
            if self._config and self.shows_config:
                display.write_fields(config_fields(self._config))
                self._config = {}

    def _end(self) -> None:
        """Close the display, whatever is at work."""
        self._fitting = False
        self._train = self._inner = self._display = None
        self._next_draw = self._next_read = math.inf
        if self._stop is not None:
            self._stop()
            self._stop = None

    def _write(self, text: str) -> None:
        if self._display is not None:
            self._display.write(text)

    def _draw(self) -> None:
        """Show the bars at work, and decide when to do it again."""
        if self._display is not None:
            begun = time.monotonic()
            self._display.show(self._lines())
            self._wait(max(self._display.interval, (time.monotonic() - begun) / _DRAWING_SHARE))

    def _wait(self, seconds: float) -> None:
        """Neither draw for a while nor, until shortly before the end of it, read values."""
        self._next_draw = time.monotonic() + seconds
        self._next_read = max(self._next_read, self._next_draw - 0.1)

    def _leave(self, line: Line) -> None:
        """Leave the line of a finished bar."""
        if self._display is not None:
            self._display.leave(line, self._lines())
            self._wait(self._display.interval)

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
        if unit is None:
            total = "" if duration is None else f"/{duration.value}"
            title = f"epoch {str(now.count(TimeUnit.EPOCH) + 1).rjust(max(len(total) - 1, 0))}{total}"
            self._train = Bar(title, "batches", earlier, in_epoch, in_epoch, series="epoch")
        else:
            self._train = Bar("train", _UNITS[unit], earlier, now.count(unit))

    def _advance_train(self, state: State) -> None:
        """Move the bar of the training to where the training is."""
        bar, now, duration = self._train, state.timestamp, state.max_duration
        if bar is None:
            return
        batches = now.count(TimeUnit.BATCH) - self._first_batch
        total = bar.total
        if self._unit is None:
            if self._inner is None:  # in an evaluation the length is that of the evaluator's loader
                total = _value(state.dataloader_len)
            bar.advance(batches, batches, total)
        else:
            # Stopping early may have changed the unit.
            if duration is not None and duration.unit is self._unit:
                total = duration.value
            bar.advance(now.count(self._unit), batches, total)

    def _finish_train(self, state: State) -> None:
        """Leave the bar of the training as it is now."""
        self._advance_train(state)
        bar, self._train = self._train, None
        if bar is not None:
            self._leave(bar.line(self._train_values(), final=True))

    def _start_inner(self, state: State, label: str) -> None:
        self._begin()
        title = label
        if self._train is not None:
            title = f"  {label} at batch {state.timestamp.count(TimeUnit.BATCH)}"
            self._train.pause()
        elif self._fitting:
            title = f"  {label}"
        self._inner = Bar(title, "batches", series=label)

    def _step_inner(self, state: State, timestamp: Timestamp) -> None:
        if self._inner is not None and time.monotonic() >= self._next_draw:
            done = timestamp.count(TimeUnit.BATCH)
            self._inner.advance(done, done, _value(state.dataloader_len))
            self._draw()

    def _finish_inner(self, state: State, timestamp: Timestamp) -> None:
        bar, self._inner = self._inner, None
        if bar is None or self._display is None:
            return
        done = timestamp.count(TimeUnit.BATCH)
        bar.advance(done, done, _value(state.dataloader_len))
        label = str(state.dataloader_label)
        values = {_short(name, label): self._values[name] for name in self._of(label)}
        if self._train is not None:
            self._train.resume()
        self._leave(bar.line(values, final=True))
        if not self._fitting:
            self._end()

    def _of(self, label: str) -> list[str]:
        """Names of the values of an evaluator."""
        return [name for name in self._values if f"/{label}/" in name]

    def _train_values(self) -> dict[str, Any]:
        values = self._values
        ours = [name for name in values if name.startswith(("loss/train/", "metrics/train/"))]
        return {_short(name, "train"): values[name] for name in ours}


def _bar_unit(state: State) -> TimeUnit | None:
    """The unit in which the run is counted, or None if each epoch has a bar of its own."""
    duration = state.max_duration
    return None if duration is None or duration.unit is TimeUnit.EPOCH else duration.unit


def _value(amount: Time | None) -> float | None:
    return None if amount is None else amount.value


def _short(name: str, label: str) -> str:
    """The name to show: "loss" for the loss, else what follows the label of the data."""
    return "loss" if name.startswith("loss/") and name.endswith("/total") else name.partition(f"/{label}/")[2]
