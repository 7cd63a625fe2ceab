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

# Records are converted in groups, in a step that reads values from the device anyway.
_GROUP: Final = 1024


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
        self._records: list[tuple[dict[str, Any], int, Timestamp]] = []

    def history(self) -> History:
        """Return what was logged so far."""
        self._convert()
        return self._builder.history()

    def __receive__(self, metrics: dict[str, Any], step: int, timestamp: Timestamp) -> None:
        """Keep a record."""
        self._records.append((metrics, step, timestamp))
        if len(self._records) >= _GROUP:
            self._convert()

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

    def _convert(self) -> None:
        """Move the records into the columns of the builder."""
        records, self._records = self._records, []
        if records and self.start is None:
            self.start = records[0][2]
        for metrics, step, now in records:
            self._builder.add(
                step,
                metrics,
                epoch=now.count(TimeUnit.EPOCH),
                sample=now.count(TimeUnit.SAMPLE),
                token=now.count(TimeUnit.TOKEN),
                seconds=now.count(TimeUnit.SECOND),
            )
        if self._builder.num_values > self._limit:
            self._builder.thin(self._limit // 2)
