"""ConsoleLogger: print metrics, hyperparameters and evaluation progress as lines of text."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TextIO

from composer import dist
from composer._numbers import positive
from composer._text import printable
from composer.core.hooks import replaces
from composer.core.logger import LoggerDestination
from composer.core.time import Time, TimeUnit, ensure_time
from composer.loggers._format import checked_stream, config_block, format_log_data_value, open_stream

if TYPE_CHECKING:
    from composer.core.logger import Logger
    from composer.core.state import State

__all__ = ["ConsoleLogger"]

# An evaluation reports its first batch and every tenth of its length.
NUM_EVAL_LOGGING_EVENTS = 11


class ConsoleLogger(LoggerDestination):
    """Prints the newest values at an interval, at the first batch, and after each evaluation.

    Between two prints nothing is read from the device. Only local rank 0 of each node prints.

    Args:
        log_interval: How often to print, in batches or epochs; a plain number is epochs.
        stream: "stderr", "stdout" or an open text file.
        log_traces: Whether to print algorithm traces, too.

    Raises:
        TypeError: ``stream`` is not writable.
        ValueError: ``log_interval`` is not positive or has another unit, or ``stream`` is an unknown name.

    >>> import torch
    >>> from composer.core import State
    >>> logger, state = ConsoleLogger("10ba", stream="stdout"), State(torch.nn.Linear(1, 1))
    >>> logger.log_to_console({"loss/train/total": 0.25}, state, prefix="Train ")
    [epoch=1][batch=0]:
             Train loss/train/total: 0.2500
    """

    def __init__(
        self, log_interval: int | str | Time = "1ba", stream: str | TextIO = "stderr", log_traces: bool = False
    ) -> None:
        interval = ensure_time(log_interval, TimeUnit.EPOCH, "log_interval", (TimeUnit.BATCH, TimeUnit.EPOCH))
        self.log_interval = Time(positive("log_interval", interval.value), interval.unit)
        self._every = interval.value if interval.unit is TimeUnit.BATCH else 0
        self.stream = checked_stream(stream)
        self.should_log_traces = log_traces
        self.logged_metrics: dict[str, Any] = {}
        self.hparams: dict[str, Any] = {}
        self._printed = False

    @property
    def __logs_here__(self) -> bool:
        """Whether this rank prints: only local rank 0 of each node does."""
        return dist.get_local_rank() == 0

    @property
    def __keeps_traces__(self) -> bool:
        """Whether to print algorithm traces."""
        return self.should_log_traces or replaces(self, ConsoleLogger, "log_traces")

    def __due__(self, state: State) -> bool:
        """Return whether to print values after this batch."""
        if self._every == 0:
            return False
        return not self._printed or state.timestamp.count(TimeUnit.BATCH) % self._every == 0

    def log_metrics(self, metrics: dict[str, Any], step: int | None = None) -> None:
        """Keep the newest values."""
        self.logged_metrics.update(metrics)

    def log_hyperparameters(self, hyperparameters: dict[str, Any]) -> None:
        """Keep hyperparameters, to print them once when training or an evaluation starts."""
        self.hparams.update(hyperparameters)

    def log_table(
        self, columns: list[str], rows: list[list[Any]], name: str = "Table", step: int | None = None
    ) -> None:
        """Print a table."""
        cells = [columns, *[[format_log_data_value(value) for value in row] for row in rows]]
        widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
        lines = ["  ".join(map(str.ljust, row, widths)).rstrip() for row in cells]
        self._print("\n\t ".join([f"{name}:", *lines]))

    def log_traces(self, traces: dict[str, Any]) -> None:
        """Print algorithm traces, with ``log_traces``."""
        if self.should_log_traces:
            for name, value in traces.items():
                self._print(f"[trace] {name}: {format_log_data_value(value)}")

    def __show_notice__(self, text: str) -> bool:
        """Print a line that reports what happens to the run."""
        self._print(text)
        return self.__logs_here__

    def fit_start(self, state: State, logger: Logger) -> None:
        """Print the hyperparameters."""
        self._printed = False
        self._print_config()

    def eval_start(self, state: State, logger: Logger) -> None:
        """Print the hyperparameters, if they were not printed before."""
        self._print_config()

    def predict_start(self, state: State, logger: Logger) -> None:
        """Print the hyperparameters, if they were not printed before."""
        self._print_config()

    def batch_end(self, state: State, logger: Logger) -> None:
        """Print the newest values, if due."""
        if self.__due__(state):
            self._print_train(state)

    def epoch_end(self, state: State, logger: Logger) -> None:
        """Print the newest values, if due."""
        in_epochs = self.log_interval.unit is TimeUnit.EPOCH
        if in_epochs and (not self._printed or state.timestamp.count(TimeUnit.EPOCH) % self.log_interval.value == 0):
            self._print_train(state)

    def fit_end(self, state: State, logger: Logger) -> None:
        """Print values logged after the last interval."""
        self._print_train(state)

    def eval_batch_end(self, state: State, logger: Logger) -> None:
        """Print the progress of an evaluation at every tenth of its length."""
        batch = state.eval_timestamp.count(TimeUnit.BATCH)
        length = state.dataloader_len
        if length is not None and batch == length.value:
            return  # eval_end prints that line with the metrics
        tenths = NUM_EVAL_LOGGING_EVENTS - 1
        if batch == 1 or (length is not None and batch * tenths // length.value > (batch - 1) * tenths // length.value):
            self._print(f"{_eval_progress(state)} Eval on {state.dataloader_label} data")

    def eval_end(self, state: State, logger: Logger) -> None:
        """Print the metrics of an evaluation."""
        names = [name for name in self.logged_metrics if f"/{state.dataloader_label}/" in name]
        values = {name: self.logged_metrics.pop(name) for name in names}
        self.log_to_console(values, state, prefix="Eval ", is_train=False)

    def log_to_console(self, data: dict[str, Any], state: State, prefix: str = "", is_train: bool = True) -> None:
        """Print values below a line that shows the progress.

        Args:
            data: Values by name.
            state: The state of the run.
            prefix: Text before each name.
            is_train: Whether the values belong to training rather than to the current evaluation.
        """
        title = f"{_train_progress(state)}:"
        if not is_train:
            title = f"{_eval_progress(state)} Eval on {state.dataloader_label} data:"
        lines = [f"\t {prefix}{printable(name)}: {format_log_data_value(value)}" for name, value in data.items()]
        self._print("\n".join([title, *lines]))

    def _print_train(self, state: State) -> None:
        """Print the values logged since the last print, if any, and clear them."""
        if self.logged_metrics:
            self.log_to_console(self.logged_metrics, state, prefix="Train ")
            self.logged_metrics = {}
            self._printed = True

    def _print_config(self) -> None:
        if self.hparams:
            self._print(config_block(self.hparams))
            self.hparams = {}

    def _print(self, text: str) -> None:
        if self.__logs_here__:
            stream = open_stream(self.stream)
            stream.write(text + "\n")
            stream.flush()


def _train_progress(state: State) -> str:
    """Return the training progress: epoch and batch, or the completed fraction of a duration in another unit."""
    now, duration = state.timestamp, state.max_duration
    if duration is not None and duration.unit is not TimeUnit.EPOCH:
        return f"[{duration.unit.name.lower()}={now.get(duration.unit).value}/{duration.value}]"
    epoch, batch, length = now.count(TimeUnit.EPOCH) + 1, state.train_phase.batches_loaded, state.dataloader_len
    if batch == 0 and now.count(TimeUnit.EPOCH) > 0:  # an epoch has just ended
        epoch, batch = now.count(TimeUnit.EPOCH), batch if length is None else length.value
    return f"[epoch={epoch}][batch={batch}{'' if length is None else f'/{length.value}'}]"


def _eval_progress(state: State) -> str:
    length = state.dataloader_len
    return f"[Eval batch={state.eval_timestamp.count(TimeUnit.BATCH)}{'' if length is None else f'/{length.value}'}]"
