from __future__ import annotations

import threading
import time

import pytest

from composer.loggers._mlflow_sender import Sender
from tests.loggers.trackers import marks

pytestmark = marks("mlflow")


class Slow:
    """A client whose requests are slow or fail."""

    def __init__(self, *failures: Exception) -> None:
        self.failures = list(failures)
        self.requests: list[list[str]] = []
        self.threads: set[int] = set()

    def log_batch(self, run_id, metrics=(), params=(), synchronous=None):
        self.threads.add(threading.get_ident())
        if self.failures:
            raise self.failures.pop(0)
        self.requests.append([metric.key for metric in metrics])


def sender(client, **arguments):
    return Sender(client, "run", **{"synchronous": False, "buffer_seconds": 0.0, "close_timeout": 20.0, **arguments})


def metrics(*names: str):
    from mlflow.entities import Metric

    return [Metric(name, 1.0, 0, 0) for name in names]


def test_metrics_are_collected_between_requests() -> None:
    client = Slow()
    sending = sender(client, buffer_seconds=600.0)
    for index in range(30):
        sending.send_metrics(metrics(f"m{index}"))
    assert sending.flush()
    sending.close()
    assert [name for request in client.requests for name in request] == [f"m{index}" for index in range(30)]
    assert len(client.requests) <= 3
    assert client.threads.isdisjoint({threading.get_ident()})


def test_enough_for_a_request_does_not_wait() -> None:
    client = Slow()
    sending = sender(client, buffer_seconds=600.0)
    for _ in range(4):
        sending.send_metrics(metrics(*["m"] * 1000))
    end = time.monotonic() + 20
    while sum(map(len, client.requests)) < 3000 and time.monotonic() < end:
        time.sleep(0.01)
    assert sum(map(len, client.requests)) >= 3000
    assert max(map(len, client.requests)) <= 1000
    sending.close()


def test_synchronous() -> None:
    client = Slow()
    sending = sender(client, synchronous=True, buffer_seconds=600.0)
    sending.send_metrics(metrics("a"))
    assert client.requests == [["a"]]
    assert client.threads == {threading.get_ident()}
    sending.close()


def test_requests_to_a_busy_server_are_retried(monkeypatch) -> None:
    from mlflow.exceptions import MlflowException
    from mlflow.protos.databricks_pb2 import TEMPORARILY_UNAVAILABLE

    import composer.loggers._background as background

    monkeypatch.setattr(background, "_FIRST_PAUSE", 0.01)
    client = Slow(MlflowException("busy", TEMPORARILY_UNAVAILABLE))
    sending = sender(client)
    sending.send_metrics(metrics("a"))
    assert sending.flush()
    sending.close()
    assert client.requests == [["a"]]


def test_rejected_requests_are_reported_and_dropped() -> None:
    from mlflow.exceptions import MlflowException
    from mlflow.protos.databricks_pb2 import INVALID_PARAMETER_VALUE

    client = Slow(MlflowException("bad name", INVALID_PARAMETER_VALUE))
    sending = sender(client)
    sending.send_metrics(metrics("a"))
    with pytest.raises(MlflowException, match="bad name"):
        sending.flush()
    sending.send_metrics(metrics("b"))
    sending.close()
    assert client.requests == [["b"]]
