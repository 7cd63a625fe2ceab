"""Send to MLflow from a thread, some seconds' worth at a time."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from composer.loggers._background import BackgroundWriter, TryAgain

__all__ = ["Sender"]

# Errors of a server that may be gone at the next attempt.
_PASSING = frozenset({"TEMPORARILY_UNAVAILABLE", "INTERNAL_ERROR", "RESOURCE_EXHAUSTED", "REQUEST_LIMIT_EXCEEDED"})
# What a request may hold.
_MAX_METRICS = 1000
_MAX_PARAMETERS = 100
_CAPACITY = 100_000

Call = Callable[[], object]


class Sender:
    """Sends metrics in batches, and makes calls, in their order.

    Args:
        client: An ``MlflowClient``.
        run_id: The run.
        synchronous: Whether to send in the thread of the caller.
        buffer_seconds: How long to collect metrics between two requests, unless there are enough for one.
        close_timeout: How long closing may take, in seconds.
    """

    def __init__(
        self, client: Any, run_id: str, synchronous: bool, buffer_seconds: float, close_timeout: float
    ) -> None:
        self.client = client
        self.run_id = run_id
        self.synchronous = synchronous
        self.buffer_seconds = buffer_seconds
        self._writer: BackgroundWriter[Any] = BackgroundWriter(
            "MLFlowLogger", self._deliver, _CAPACITY, _MAX_METRICS, close_timeout=close_timeout, names=_names
        )
        self._hurry = threading.Event()  # ends the time of collecting
        self._waited_for = 0  # how many flushes are on
        self._lock = threading.Lock()
        self._number_waiting = 0  # of metrics

    def send_metrics(self, metrics: list[Any]) -> None:
        """Send ``mlflow.entities.Metric`` objects, now or later.

        Args:
            metrics: The objects.
        """
        if self.synchronous:
            self._deliver(metrics)
            return
        self._count(len(metrics))
        if metrics:
            self._writer.put(*metrics)

    def send_parameters(self, parameters: Mapping[str, str]) -> None:
        """Send parameters, now or later.

        Args:
            parameters: Texts by name.
        """
        from mlflow.entities import Param

        entities = [Param(name, value) for name, value in parameters.items()]
        for start in range(0, len(entities), _MAX_PARAMETERS):
            some = entities[start : start + _MAX_PARAMETERS]
            self.call(lambda some=some: self.client.log_batch(self.run_id, params=some, synchronous=True))

    def call(self, function: Call) -> None:
        """Make a call, now or later.

        Args:
            function: What to call; it is never left out.
        """
        if self.synchronous:
            self._deliver([function])
        else:
            self._writer.put(function, keep=True)

    def hurry(self) -> None:
        """Send what was collected soon."""
        self._hurry.set()

    def flush(self) -> bool:
        """Wait until everything is sent; tell whether it is."""
        self._waited_for += 1
        self._hurry.set()
        try:
            return self._writer.flush()
        finally:
            self._waited_for -= 1

    def close(self) -> None:
        """Send what waits, and end the thread."""
        self._waited_for += 1
        self._hurry.set()
        self._writer.close()

    def _count(self, change: int) -> int:
        """Note that metrics come or go; return how many wait."""
        with self._lock:
            self._number_waiting += change
            if self._number_waiting >= _MAX_METRICS:
                self._hurry.set()
            return self._number_waiting

    def _deliver(self, records: list[Any]) -> None:
        for is_call, group in itertools.groupby(records, callable):
            self._attempt(list(group), is_call)
        if self.synchronous:
            return
        waiting = self._count(-sum(not callable(record) for record in records))
        if waiting < _MAX_METRICS and not self._waited_for:
            self._hurry.wait(self.buffer_seconds)
            self._hurry.clear()

    def _attempt(self, records: list[Any], are_calls: bool) -> None:
        from mlflow.exceptions import MlflowException

        try:
            if are_calls:
                for call in records:
                    call()
            else:
                self.client.log_batch(self.run_id, metrics=records, synchronous=True)
        except MlflowException as error:
            if not self.synchronous and error.error_code in _PASSING:
                raise TryAgain(reason=str(error)) from error
            raise


def _names(record: Any) -> Iterator[str]:
    """The name of a metric, of which the newest is to be kept."""
    if not callable(record):
        yield record.key
