"""Send metrics, parameters and calls to MLflow from a background thread, in batches."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from composer.loggers._background import BackgroundWriter, RetryLater

__all__ = ["Sender"]

# Server errors that may be temporary.
_TEMPORARY = frozenset({"TEMPORARILY_UNAVAILABLE", "INTERNAL_ERROR", "RESOURCE_EXHAUSTED", "REQUEST_LIMIT_EXCEEDED"})
# Limits per request.
_MAX_METRICS = 1000
_MAX_PARAMETERS = 100
_CAPACITY = 100_000

Call = Callable[[], object]


class Sender:
    """Sends metrics in batches and makes calls to MLflow, in order.

    Args:
        client: An ``MlflowClient``.
        run_id: The run.
        synchronous: Whether to send in the caller's thread.
        buffer_seconds: How long to collect metrics between two requests, unless there are enough for a full one.
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
        self._send_now = threading.Event()  # ends the collection of metrics
        self._num_flushes = 0  # in progress
        self._lock = threading.Lock()
        self._num_waiting = 0  # of metrics

    def send_metrics(self, metrics: list[Any]) -> None:
        """Send ``mlflow.entities.Metric`` objects, now or in the background.

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
        """Send parameters, now or in the background.

        Args:
            parameters: Strings by name.
        """
        from mlflow.entities import Param

        entities = [Param(name, value) for name, value in parameters.items()]
        for start in range(0, len(entities), _MAX_PARAMETERS):
            batch = entities[start : start + _MAX_PARAMETERS]
            self.call(lambda batch=batch: self.client.log_batch(self.run_id, params=batch, synchronous=True))

    def call(self, function: Call) -> None:
        """Call a function, now or in the background.

        Args:
            function: The function; the call is never dropped.
        """
        if self.synchronous:
            self._deliver([function])
        else:
            self._writer.put(function, keep=True)

    def hurry(self) -> None:
        """Send collected metrics soon, without waiting."""
        self._send_now.set()

    def flush(self) -> bool:
        """Wait until everything is sent, and return whether it is."""
        self._num_flushes += 1
        self._send_now.set()
        try:
            return self._writer.flush()
        finally:
            self._num_flushes -= 1

    def close(self) -> None:
        """Send queued records, and end the thread."""
        self._num_flushes += 1
        self._send_now.set()
        self._writer.close()

    def _count(self, change: int) -> int:
        """Add to the number of waiting metrics, and return it."""
        with self._lock:
            self._num_waiting += change
            if self._num_waiting >= _MAX_METRICS:
                self._send_now.set()
            return self._num_waiting

    def _deliver(self, records: list[Any]) -> None:
        for is_call, group in itertools.groupby(records, callable):
            self._attempt(list(group), is_call)
        if self.synchronous:
            return
        waiting = self._count(-sum(not callable(record) for record in records))
        if waiting < _MAX_METRICS and not self._num_flushes:
            self._send_now.wait(self.buffer_seconds)
            self._send_now.clear()

    def _attempt(self, records: list[Any], are_calls: bool) -> None:
        from mlflow.exceptions import MlflowException

        try:
            if are_calls:
                for call in records:
                    call()
            else:
                self.client.log_batch(self.run_id, metrics=records, synchronous=True)
        except MlflowException as error:
            if not self.synchronous and error.error_code in _TEMPORARY:
                raise RetryLater(reason=str(error)) from error
            raise


def _names(record: Any) -> Iterator[str]:
    """Yield the name of a metric, whose newest value must be kept."""
    if not callable(record):
        yield record.key
