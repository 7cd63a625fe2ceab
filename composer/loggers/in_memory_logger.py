"""InMemoryLogger: keep metrics, hyperparameters and tables in memory, for notebooks and tests."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from torch import Tensor

from composer._text import did_you_mean
from composer.core.logger import LoggerDestination
from composer.core.time import TimeUnit
from composer.core.timestamp import Timestamp

if TYPE_CHECKING:
    import numpy as np

    from composer.core.logger import Logger
    from composer.core.state import State

__all__ = ["InMemoryLogger"]


class InMemoryLogger(LoggerDestination):
    """Keeps metrics with the timestamps at which they were logged, hyperparameters and tables in memory.

    Metrics stay queued on their device for up to ``flush_interval`` batches; reading :attr:`data`, or anything derived
    from it, flushes the queue first, so that the data is always complete.

    Values are stored as they were logged, with tensors on the CPU: metrics compute tensors, losses are numbers.

    Attributes:
        state: The state of the run, until it is closed.
        hyperparameters: All logged hyperparameters, by name.
        tables: The newest table of each name, as JSON ``{"columns": [...], "data": [[...], ...]}``.

    >>> logger = InMemoryLogger()
    >>> for batch, loss in enumerate([0.9, 0.5, 0.4]):
    ...     logger.log_metrics({"loss/train/total": loss}, step=batch)
    >>> series = logger.get_timeseries("loss/train/total")
    >>> series["batch"], series["loss/train/total"]  # plt.plot(*these)
    (array([0, 1, 2]), array([0.9, 0.5, 0.4]))
    """

    flush_interval: int = 100

    def __init__(self) -> None:
        self.hyperparameters: dict[str, Any] = {}
        self.tables: dict[str, str] = {}
        self._data: dict[str, list[tuple[Timestamp, Any]]] = {}
        self.state: State | None = None
        self._logger: Logger | None = None

    @property
    def data(self) -> dict[str, list[tuple[Timestamp, Any]]]:
        """All logged values by name, each with its timestamp, in the order of logging."""
        if self._logger is not None:
            self._logger.flush()
        return self._data

    @property
    def __flush_interval__(self) -> int:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self.flush_interval

    @property
    def most_recent_values(self) -> dict[str, Any]:
        """The last value of each metric."""
        return {name: series[-1][1] for name, series in self.data.items()}

    @property
    def most_recent_timestamps(self) -> dict[str, Timestamp]:
        """The timestamp at which each metric was last logged."""
        return {name: series[-1][0] for name, series in self.data.items()}

    def get_timeseries(self, metric: str) -> dict[str, np.ndarray]:
        """Return one metric as arrays of equal length, with one entry per logged value.

        Args:
            metric: Name of the metric as it was logged; the prefix "metrics/" may be omitted. The result has its
                values under this name, the counters of the training time under ``"batch"``, ``"epoch"``,
                ``"sample"`` and so on, and the wall-clock times (``"total_wct"``, ...) in seconds.

        Raises:
            ValueError: The metric was never logged.

        >>> logger = InMemoryLogger()
        >>> logger.log_metrics({"loss": 0.5}, step=10)
        >>> logger.get_timeseries("lss")
        Traceback (most recent call last):
        ...
        ValueError: metric must be the name of a logged metric; got 'lss'. Did you mean 'loss'?
        """
        import numpy as np

        data, requested = self.data, metric
        if metric not in data and f"metrics/{metric}" in data:
            metric = f"metrics/{metric}"
        if metric not in data:
            raise ValueError(_unknown_metric(metric, data))
        timestamps, values = zip(*data[metric], strict=True)
        saved = [timestamp.state_dict() for timestamp in timestamps]
        series = {
            field: np.array([value.total_seconds() if field.endswith("_wct") else value for value in column])
            for field, column in ((field, [state[field] for state in saved]) for field in saved[0])
        }
        series[requested] = np.array([value.tolist() if isinstance(value, Tensor) else value for value in values])
        return series

    def init(self, state: State, logger: Logger) -> None:
        """Remember the run, to flush queued values."""
        self.state, self._logger = state, logger

    def __receive__(self, metrics: dict[str, Any], step: int, timestamp: Timestamp) -> None:
        """Store values with their timestamp."""
        if timestamp.count(TimeUnit.BATCH) != step:
            timestamp = timestamp.copy(batch=step)
        data = self._data
        for name, value in metrics.items():
            try:
                data[name].append((timestamp, value))
            except KeyError:
                data[name] = [(timestamp, value)]

    def log_metrics(self, metrics: dict[str, Any], step: int | None = None) -> None:
        """Store values that were logged without a timestamp, at the current time."""
        now = Timestamp() if self.state is None else self.state.timestamp
        self.__receive__(metrics, now.count(TimeUnit.BATCH) if step is None else step, now)

    def log_hyperparameters(self, hyperparameters: dict[str, Any]) -> None:
        """Store hyperparameters."""
        self.hyperparameters.update(hyperparameters)

    def log_table(
        self, columns: list[str], rows: list[list[Any]], name: str = "Table", step: int | None = None
    ) -> None:
        """Store a table, replacing an earlier one of the same name."""
        self.tables[name] = json.dumps({"columns": columns, "data": rows}, default=_plain, separators=(",", ":"))

    def close(self, state: State, logger: Logger) -> None:
        """Flush queued values, and release the run."""
        # The data outlives the run, but must not keep the logger's model alive.
        logger.flush()
        self.state = self._logger = None


def _unknown_metric(metric: str, data: dict[str, Any]) -> str:
    """Return the error message for a metric that was never logged."""
    hint = did_you_mean(metric, data)
    known = "" if hint else f" Logged so far: {', '.join(map(repr, sorted(data)))}." if data else " None was logged."
    return f"metric must be the name of a logged metric; got {metric!r}.{hint}{known}"


def _plain(value: Any) -> Any:
    """Convert what JSON does not support: tensors and arrays to numbers, anything else to text."""
    return value.tolist() if hasattr(value, "tolist") else str(value)
