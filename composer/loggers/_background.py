"""Deliver log records to slow trackers from a background thread, with retries and a bounded queue."""

from __future__ import annotations

import logging
import math
import threading
import time
import warnings
from collections import deque
from collections.abc import Callable, Iterable
from typing import Generic, TypeVar

from composer._numbers import non_negative, whole_number
from composer._text import plural
from composer.warnings import ComposerWarning

__all__ = ["BackgroundWriter", "RetryLater"]

_log = logging.getLogger(__name__)

Record = TypeVar("Record")

# Delays between retries, in seconds: doubled each time, from the first to the longest.
_FIRST_PAUSE = 0.5
_LONGEST_PAUSE = 30.0


class RetryLater(Exception):  # noqa: N818 - a request to retry
    """Raised by a delivery that should be retried, such as one that a server rejected temporarily.

    Args:
        after: How long to wait before the retry, in seconds.
        reason: What to report if retries keep failing.
    """

    def __init__(self, after: float = 0.0, reason: str = "the tracker asks to retry later") -> None:
        super().__init__(reason)
        self.after = after


class BackgroundWriter(Generic[Record]):
    """Passes records to a function in a background thread, in order, and in batches when they pile up.

    A delivery that fails with a connection error (``OSError`` and its subclasses, :class:`RetryLater`) is retried until
    it succeeds; the order of records is kept. One that fails with another error is retried record by record, and
    records that fail alone are dropped. Errors are raised in the caller's thread, by the next :meth:`put` after it has
    queued its records, so that the caller decides how to handle them.

    The queue is bounded. If more than ``capacity`` records wait, every second one is dropped, with one warning, except
    those put with ``keep=True``, the newest record and the newest that contains each name of ``names``.

    The thread starts with the first record and ends with :meth:`close`, after which the writer can be used again.

    Args:
        name: Name of the writer, for messages.
        deliver: Function that takes a list of records; runs in the thread.
        capacity: Maximum number of queued records.
        max_batch: Maximum number of records per delivery.
        patience: How long to retry failing deliveries before raising in the caller, in seconds.
        close_timeout: How long closing may take, in seconds. Records not delivered by then are lost, with a warning.
        names: Function that returns the names of the values in a record; none by default.

    Raises:
        ValueError: A number is out of range.

    >>> delivered = []
    >>> writer = BackgroundWriter("Example", delivered.extend)
    >>> writer.put(1, 2)
    >>> writer.put(3)
    >>> writer.close()
    >>> delivered
    [1, 2, 3]
    """

    def __init__(
        self,
        name: str,
        deliver: Callable[[list[Record]], object],
        capacity: int = 10_000,
        max_batch: int = 1_000,
        patience: float = 60.0,
        close_timeout: float = 60.0,
        *,
        names: Callable[[Record], Iterable[str]] = lambda record: (),
    ) -> None:
        self.name = name
        self.deliver = deliver
        self.capacity = whole_number("capacity", capacity, minimum=1)
        self.max_batch = whole_number("max_batch", max_batch, minimum=1)
        self.patience = non_negative("patience", patience)
        self.close_timeout = non_negative("close_timeout", close_timeout)
        self.names = names
        self._changed = threading.Condition(threading.RLock())  # reentrant, as a signal handler may log during a put
        self._waiting: deque[tuple[Record, bool]] = deque()
        self._in_flight = 0  # number of records in the current delivery
        self._limit = self.capacity
        self._thread: threading.Thread | None = None
        self._deadline: float | None = None  # of closing
        self._error: Exception | None = None  # not raised in the caller yet
        self._outage: Exception | None = None  # why the current delivery is retried
        self._has_warned = False

    def put(self, *records: Record, keep: bool = False) -> None:
        """Queue records, without waiting.

        Args:
            records: Records to deliver, after all that were queued before.
            keep: Never drop these records, even if the queue is full.

        Raises:
            Exception: An earlier delivery has failed; the records are queued nevertheless.
        """
        with self._changed:
            error, self._error = self._error, None  # of an earlier delivery, not of the one started here
            self._waiting.extend((record, keep) for record in records)
            dropped = len(self._waiting) > self._limit and self._drop_some()
            if self._thread is None and self._waiting:
                self._start()
            self._changed.notify_all()
        if dropped and not self._has_warned:
            self._has_warned = True
            message = (
                f"{self.name} delivers values more slowly than they are logged: more than {self.capacity} are queued, "
                f"and some were dropped. The newest value of each name is kept."
            )
            warnings.warn(message, ComposerWarning, stacklevel=3)
        if error is not None:
            raise error

    def flush(self, timeout: float | None = None) -> bool:
        """Wait until everything is delivered, and return whether it is.

        Args:
            timeout: How long to wait, in seconds; ``close_timeout`` by default.

        Raises:
            Exception: A delivery has failed.
        """
        with self._changed:
            done = self._changed.wait_for(self._idle, self.close_timeout if timeout is None else timeout)
        self._raise()
        return done

    def close(self) -> None:
        """Deliver queued records for at most ``close_timeout`` and end the thread; warn about lost records."""
        begun = time.monotonic()
        with self._changed:
            thread, number = self._thread, len(self._waiting) + self._in_flight
            self._deadline = begun + self.close_timeout
            self._changed.notify_all()
        if thread is None:
            self._work(None)  # no thread can start late in the shutdown of the interpreter
        else:
            thread.join(self.close_timeout)
        with self._changed:
            lost = len(self._waiting) + self._in_flight
            error = self._error or (self._outage if lost else None)
            self._waiting.clear()
            self._in_flight, self._limit, self._has_warned = 0, self.capacity, False
            self._thread = self._deadline = self._error = self._outage = None
        seconds = time.monotonic() - begun
        if number:
            delivered = plural(number - lost, "record")
            _log.info("%s was closed within %.1f s, in which it delivered %s.", self.name, seconds, delivered)
        if lost or error is not None:
            records = plural(lost, "record")
            result = f"could not deliver the last {records}" if lost else "failed to deliver some records"
            reason = "" if error is None else f": {type(error).__name__}: {error}"
            message = f"{self.name} {result} before it was closed, within {seconds:.1f} s{reason}"
            warnings.warn(message, ComposerWarning, stacklevel=3)

    def _idle(self) -> bool:
        return not self._waiting and not self._in_flight

    def _raise(self) -> None:
        """Raise the error of the thread, once."""
        with self._changed:
            error, self._error = self._error, None
        if error is not None:
            raise error

    def _start(self) -> None:
        thread = threading.Thread(target=lambda: self._work(thread), name=f"{self.name} writer", daemon=True)
        try:
            thread.start()
        except RuntimeError:  # the interpreter is shutting down; close() delivers
            return
        self._thread = thread

    def _drop_some(self) -> bool:
        """Drop every second record, except kept ones and the newest of each name; return whether any was dropped."""
        kept: list[tuple[Record, bool]] = []
        seen: set[str] = set()
        drop = False  # alternates between the records that may be dropped
        for record, keep in reversed(self._waiting):
            newest = not kept
            unseen = not seen.issuperset(names := tuple(self.names(record)))
            seen.update(names)
            if keep or newest or unseen:
                kept.append((record, keep))
            else:
                drop = not drop
                if not drop:
                    kept.append((record, keep))
        dropped = len(kept) < len(self._waiting)
        self._waiting = deque(reversed(kept))
        # If little can be dropped, the next attempt waits for many more records.
        self._limit = max(self.capacity, len(kept) + self.capacity // 4 + 1)
        return dropped

    def _work(self, thread: threading.Thread | None) -> None:
        """Deliver records until the writer is closed."""
        singles = 0  # number of records to deliver one by one
        failing_since: float | None = None
        pause = _FIRST_PAUSE
        while batch := self._next_batch(1 if singles else self.max_batch, thread):
            error: Exception | None = None  # to raise in the caller
            outage: Exception | None = None
            retry_after: float | None = None  # in seconds
            try:
                self.deliver([record for record, _ in batch])
                singles, failing_since, pause = max(singles - 1, 0), None, _FIRST_PAUSE
            except (OSError, RetryLater) as failure:
                now, outage = time.monotonic(), failure
                failing_since = now if failing_since is None else failing_since
                retry_after = max(pause, failure.after if isinstance(failure, RetryLater) else 0.0)
                pause = min(2 * pause, _LONGEST_PAUSE)
                if now + retry_after - failing_since > self.patience:
                    error, failing_since = failure, math.inf  # once per outage
            except Exception as failure:
                if len(batch) > 1:
                    singles, retry_after = len(batch), 0.0
                else:
                    singles, error = max(singles - 1, 0), failure
            with self._changed:
                if self._thread is not thread:  # closed without waiting for the end of this delivery
                    return
                self._in_flight, self._outage, self._error = 0, outage, self._error or error
                if retry_after is not None:
                    self._waiting.extendleft(reversed(batch))
                    self._pause(retry_after, thread)
                self._changed.notify_all()

    def _next_batch(self, number: int, thread: threading.Thread | None) -> list[tuple[Record, bool]]:
        """Wait for records and dequeue them; return an empty list when it is time to stop."""
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or self._deadline is not None or self._thread is not thread)
            if self._thread is not thread or (self._deadline is not None and time.monotonic() >= self._deadline):
                return []
            batch = [self._waiting.popleft() for _ in range(min(number, len(self._waiting)))]
            self._in_flight = len(batch)
            return batch

    def _pause(self, seconds: float, thread: threading.Thread | None) -> None:
        """Wait before a retry, but not beyond the start or the deadline of closing."""
        deadline = self._deadline
        if deadline is not None:
            seconds = min(seconds, max(deadline - time.monotonic(), 0.0))
        self._changed.wait_for(lambda: self._deadline != deadline or self._thread is not thread, seconds)
