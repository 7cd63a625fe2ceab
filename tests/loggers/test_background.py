from __future__ import annotations

import logging
import threading
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from composer.loggers import _background
from composer.loggers._background import BackgroundWriter, RetryLater
from composer.warnings import ComposerWarning


@pytest.fixture(autouse=True)
def _short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_background, "_FIRST_PAUSE", 0.001)
    monkeypatch.setattr(_background, "_LONGEST_PAUSE", 0.005)


class Tracker:
    """Receives records; waits while ``gate`` is closed, and fails as set in ``failures``."""

    def __init__(self, *failures: Exception) -> None:
        self.batches: list[list] = []
        self.failures = list(failures)
        self.gate = threading.Event()
        self.gate.set()
        self.called = threading.Event()

    def __call__(self, records: list) -> None:
        self.called.set()
        assert self.gate.wait(10)
        if self.failures:
            raise self.failures.pop(0)
        self.batches.append(records)

    @property
    def received(self) -> list:
        return [record for batch in self.batches for record in batch]


def blocked(**arguments) -> tuple[Tracker, BackgroundWriter]:
    """Return a writer with record 0 in an unfinished delivery."""
    tracker = Tracker()
    tracker.gate.clear()
    writer = BackgroundWriter("Slow", tracker, **arguments)
    writer.put(0)
    assert tracker.called.wait(10)
    return tracker, writer


def test_order_and_batches() -> None:
    tracker, writer = blocked(max_batch=4)
    for record in range(1, 10):
        writer.put(record)
    tracker.gate.set()
    writer.close()
    assert tracker.batches == [[0], [1, 2, 3, 4], [5, 6, 7, 8], [9]]


def test_no_thread_before_the_first_record_nor_after_the_end() -> None:
    threads = set(threading.enumerate())
    tracker = Tracker()
    writer = BackgroundWriter("Example", tracker)
    assert set(threading.enumerate()) <= threads
    writer.put()
    assert set(threading.enumerate()) <= threads
    writer.put(1)
    assert [thread.name for thread in set(threading.enumerate()) - threads] == ["Example writer"]
    assert [thread.daemon for thread in threading.enumerate() if thread.name == "Example writer"] == [True]
    writer.close()
    assert set(threading.enumerate()) <= threads
    writer.close()
    writer.put(2)
    writer.close()
    assert tracker.received == [1, 2]


def test_put_does_not_wait() -> None:
    tracker, writer = blocked()
    begun = time.monotonic()
    writer.put(*range(1, 1000))
    assert time.monotonic() - begun < 1
    assert not writer.flush(timeout=0.01)
    tracker.gate.set()
    assert writer.flush()
    assert tracker.received == list(range(1000))
    writer.close()


def test_a_lost_connection_is_retried() -> None:
    tracker = Tracker(ConnectionError("down"), TimeoutError("late"), RetryLater(0.002))
    writer = BackgroundWriter("Example", tracker, max_batch=2)
    writer.put(*range(5))
    assert writer.flush()
    writer.close()
    assert tracker.received == list(range(5))


def test_a_long_outage_is_raised_once_without_losing_records() -> None:
    tracker = Tracker(*[ConnectionError("down")] * 20)
    writer = BackgroundWriter("Example", tracker, patience=0.0)
    writer.put(1)
    with pytest.raises(ConnectionError, match="down"):
        writer.flush()
    writer.put(2)
    assert writer.flush()
    writer.close()
    assert tracker.received == [1, 2]


def test_a_record_that_fails_alone_is_dropped() -> None:
    received = []

    def deliver(records: list[int]) -> None:
        if 3 in records:
            raise ValueError("refused 3")
        received.extend(records)

    writer = BackgroundWriter("Example", deliver)
    writer.put(*range(6))
    with pytest.raises(ValueError, match="refused 3"):
        writer.flush()
    writer.put(6)
    writer.close()
    assert received == [0, 1, 2, 4, 5, 6]


def test_put_raises_only_after_queuing_its_records() -> None:
    tracker = Tracker(ValueError("refused"))
    writer = BackgroundWriter("Example", tracker)
    writer.put(1)
    while writer._error is None:
        time.sleep(0.001)
    with pytest.raises(ValueError, match="refused"):
        writer.put(2)
    writer.close()
    assert tracker.received == [2]


def test_a_full_queue_drops_records_with_one_warning() -> None:
    tracker, writer = blocked(capacity=8, names=lambda record: ("rare",) if record == 1 else ("common",))
    writer.put(1, 2)
    writer.put("kept", keep=True)
    with pytest.warns(ComposerWarning, match=r"Slow delivers values more slowly than they are logged") as caught:
        for record in range(3, 103):
            writer.put(record)
            assert len(writer._waiting) <= 8 + 2
    assert len(caught) == 1
    tracker.gate.set()
    writer.close()
    assert {0, 1, "kept", 102} <= set(tracker.received)
    numbers = [record for record in tracker.received if record != "kept"]
    assert numbers == sorted(numbers)
    assert len(numbers) <= 11


@given(
    st.lists(st.tuples(st.sampled_from("abc"), st.booleans()), max_size=40),
    st.integers(1, 10),
    st.integers(1, 5),
)
def test_the_newest_of_each_name_and_kept_records_are_delivered_in_order(puts, capacity: int, max_batch: int) -> None:
    tracker, writer = blocked(capacity=capacity, max_batch=max_batch, names=lambda r: r[0] if r else ())
    writer._has_warned = True  # no warning
    records = [(name, number) for number, (name, _) in enumerate(puts)]
    for record, (_, keep) in zip(records, puts, strict=True):
        writer.put(record, keep=keep)
    tracker.gate.set()
    writer.close()
    received = tracker.received[1:]
    assert received == [record for record in records if record in set(received)]
    needed = {record for record, (_, keep) in zip(records, puts, strict=True) if keep}
    needed |= set(dict(records).items())  # the last of each name
    assert needed <= set(received)


def test_everything_is_delivered_below_capacity() -> None:
    tracker, writer = blocked(capacity=100)
    writer.put(*range(1, 101))
    tracker.gate.set()
    writer.close()
    assert tracker.received == list(range(101))


def test_closing_is_bounded_and_reports_lost_records() -> None:
    tracker, writer = blocked(close_timeout=0.1)
    writer.put(1, 2)
    begun = time.monotonic()
    with pytest.warns(ComposerWarning, match=r"Slow could not deliver the last 3 records before .* within 0\.1 s$"):
        writer.close()
    assert time.monotonic() - begun < 5
    stuck = next(thread for thread in threading.enumerate() if thread.name == "Slow writer")
    tracker.gate.set()
    stuck.join(10)
    assert not stuck.is_alive()
    assert tracker.received == [0]  # what was in work, when it could be
    writer.put(3)
    writer.close()
    assert tracker.received == [0, 3]


def test_closing_during_an_outage_reports_the_error() -> None:
    tracker = Tracker(*[ConnectionError("down")] * 1000)
    writer = BackgroundWriter("Example", tracker, close_timeout=0.05)
    writer.put(1)
    with pytest.warns(ComposerWarning, match=r"the last 1 record before .*: ConnectionError: down"):
        writer.close()


def test_closing_retries_immediately(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_background, "_FIRST_PAUSE", 50.0)
    monkeypatch.setattr(_background, "_LONGEST_PAUSE", 50.0)
    tracker = Tracker(ConnectionError("down"))
    writer = BackgroundWriter("Example", tracker)
    writer.put(1)
    while tracker.failures:
        time.sleep(0.001)
    writer.close()
    assert tracker.received == [1]


def test_an_unraised_error_is_reported_on_close() -> None:
    writer = BackgroundWriter("Example", Tracker(ValueError("refused")))
    writer.put(1)
    with pytest.warns(ComposerWarning, match=r"failed to deliver some records before .*: ValueError: refused"):
        writer.close()


def test_closing_delivers_if_no_thread_can_start(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(thread) -> None:
        raise RuntimeError("can't create new thread at interpreter shutdown")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    tracker = Tracker()
    writer = BackgroundWriter("Example", tracker)
    writer.put(1)
    writer.put(2)
    writer.close()
    assert tracker.received == [1, 2]


def test_the_time_of_closing_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    tracker, writer = blocked()
    with caplog.at_level(logging.INFO):
        threading.Timer(0.01, tracker.gate.set).start()
        writer.close()
    assert "Slow was closed within 0." in caplog.text
    assert "in which it delivered 1 record." in caplog.text


@pytest.mark.parametrize("name", ["capacity", "max_batch", "patience", "close_timeout"])
def test_numbers_out_of_range(name: str) -> None:
    with pytest.raises(ValueError, match=f"{name} must be"):
        BackgroundWriter("Example", Tracker(), **{name: -1})
