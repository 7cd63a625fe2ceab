"""LiveHistory: keep what the logger of a running trainer delivers, in bounded memory."""

from __future__ import annotations

from typing import Any, Final

from composer.core.logger_destination import LoggerDestination
from composer.core.run_event import RunEvent
from composer.core.time import TimeUnit
from composer.core.timestamp import Timestamp
from composer.history.builder import HistoryBuilder
from composer.history.history import History, LoggedTable

__all__ = ["LiveHistory"]

# Reading a member off its enum costs more than the rest of the call.
_EPOCH: Final = TimeUnit.EPOCH
_SAMPLE: Final = TimeUnit.SAMPLE
_TOKEN: Final = TimeUnit.TOKEN
_SECOND: Final = TimeUnit.SECOND


class LiveHistory(LoggerDestination):
    """Keeps metrics, hyperparameters, tables and events in memory, as 12 bytes a value and 40 bytes a record.

    Beyond ``limit`` values, all series are downsampled to half of it so that minima and maxima stay; of longer runs the
    file of a logger has every value.

    Args:
        name: Name of the run.
        limit: The largest number of values.

    Attributes:
        start: The time of the first record; None before.

    >>> live = LiveHistory("night")
    >>> live.__receive__({"loss": 0.5}, 0, Timestamp())
    >>> live.history()["loss"].last
    0.5
    """

    def __init__(self, name: str, limit: int = 4_000_000) -> None:
        self.start: Timestamp | None = None
        self._builder = HistoryBuilder(name)
        self._limit = limit

    def history(self) -> History:
        """Return what was logged so far."""
        return self._builder.history()

    def __receive__(self, metrics: dict[str, Any], step: int, timestamp: Timestamp) -> None:
        """Keep a record."""
        if self.start is None:
            self.start = timestamp
        self._builder.add(
            int(step),
            metrics,
            epoch=timestamp.count(_EPOCH),
            sample=timestamp.count(_SAMPLE),
            token=timestamp.count(_TOKEN),
            seconds=timestamp.count(_SECOND),
        )
        if self._builder.num_values > self._limit:
            self._builder.thin(self._limit // 2)

    def log_hyperparameters(self, hyperparameters: dict[str, Any]) -> None:
        """Keep hyperparameters."""
        self._builder.hyperparameters.update(hyperparameters)

    def log_table(
        self, columns: list[str], rows: list[list[Any]], name: str = "Table", step: int | None = None
    ) -> None:
        """Keep a table in place of an earlier one of the same name."""
        self._builder.tables[name] = LoggedTable(list(columns), [list(row) for row in rows], step or 0)

    def __receive_event__(self, event: RunEvent) -> None:
        """Keep an event."""
        self._builder.events.append(event)
