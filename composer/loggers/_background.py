"""Hand what is logged to a slow tracker without waiting for it."""

from __future__ import annotations

import logging
import math
import threading
import time
import warnings
from collections import deque
from collections.abc import Callable, Iterable
from typing import Generic, TypeVar

from composer._text import non_negative, plural, positive
from composer.warnings import ComposerWarning

__all__ = ["BackgroundWriter", "TryAgain"]

_log = logging.getLogger(__name__)

Record = TypeVar("Record")

# Pauses after failures, in seconds: doubled each time, from the first to the longest.
_FIRST_PAUSE = 0.5
_LONGEST_PAUSE = 30.0


class TryAgain(Exception):  # noqa: N818 - it asks for something
    """Raised by a delivery that is to be repeated, such as one that a server refused for now.

    Args:
        after: How long to wait before, in seconds.
        reason: What to report if that goes on for too long.
    """

    def __init__(self, after: float = 0.0, reason: str = "the tracker asks to wait") -> None:
        super().__init__(reason)
        self.after = after


class BackgroundWriter(Generic[Record]):
    """Passes records on to a function in a thread of its own, in their order, and several at once when they pile up.

    A delivery that fails as connections do (``OSError`` and its kinds, :class:`TryAgain`) is repeated until it
    succeeds; records stay in their order meanwhile. One that fails in another way is repeated record by record, and
    those that fail alone are dropped. Errors are raised in the thread of the caller, by the next :meth:`put` once it
    has taken its records, so that whoever logs decides what a failure means.

    The queue is bounded. When more than ``capacity`` records wait, every second one is dropped, with one warning;
    those put with ``keep=True``, the newest record and the newest that holds each name of ``names`` stay.

    The thread starts with the first record and ends with :meth:`close`, after which the writer can be used again.

    Args:
        name: Who writes, for messages.
        deliver: Takes a list of records; runs in the thread.
        capacity: How many records may wait.
        max_batch: How many records a delivery may hold.
        patience: For how long failing deliveries are repeated before the caller learns of it, in seconds.
        close_timeout: How long closing may take, in seconds. What is not delivered by then is lost, with a warning.
        names: The names of the values in a record; none by default.

    Raises:
        ValueError: A number is out of its range.

    >>> taken = []
    >>> writer = BackgroundWriter("Example", taken.extend)
    >>> writer.put(1, 2)
    >>> writer.put(3)
    >>> writer.close()
    >>> taken
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
        self.capacity = positive("capacity", capacity)
        self.max_batch = positive("max_batch", max_batch)
        self.patience = non_negative("patience", patience)
        self.close_timeout = non_negative("close_timeout", close_timeout)
        self.names = names
        self._changed = threading.Condition(threading.RLock())  # a signal handler may log in the midst of a put
        self._waiting: deque[tuple[Record, bool]] = deque()
        self._in_work = 0  # records in the delivery at work
        self._limit = capacity
        self._thread: threading.Thread | None = None
        self._deadline: float | None = None  # of closing
        self._error: Exception | None = None  # that the caller has not seen
        self._outage: Exception | None = None  # why the delivery at work is repeated
        self._thinned = False

    def put(self, *records: Record, keep: bool = False) -> None:
        """Queue records; returns at once.

        Args:
            records: What to deliver, after all that was put before.
            keep: Whether these must not be dropped however many wait.

        Raises:
            Exception: An earlier delivery has failed; these records are queued all the same.
        """
        with self._changed:
            error, self._error = self._error, None  # of an earlier delivery, not of the one that begins here
            self._waiting.extend((record, keep) for record in records)
            thinned = len(self._waiting) > self._limit and self._thin()
            if self._thread is None and self._waiting:
                self._start()
            self._changed.notify_all()
        if thinned and not self._thinned:
            self._thinned = True
            message = (
                f"{self.name} takes longer to deliver values than it takes to log them: of more than {self.capacity} "
                f"that wait, some are left out. The newest of each name are kept."
            )
            warnings.warn(message, ComposerWarning, stacklevel=3)
        if error is not None:
            raise error

    def flush(self, timeout: float | None = None) -> bool:
        """Wait until everything is delivered; tell whether it is.

        Args:
            timeout: How long to wait at most, in seconds; ``close_timeout`` by default.

        Raises:
            Exception: A delivery has failed.
        """
        with self._changed:
            done = self._changed.wait_for(self._idle, self.close_timeout if timeout is None else timeout)
        self._raise()
        return done

    def close(self) -> None:
        """Deliver what waits, for as long as ``close_timeout`` allows, and end the thread; warn of what is lost."""
        begun = time.monotonic()
        with self._changed:
            thread, number = self._thread, len(self._waiting) + self._in_work
            self._deadline = begun + self.close_timeout
            self._changed.notify_all()
        if thread is None:
            self._work(None)  # late in the end of a process no thread can start
        else:
            thread.join(self.close_timeout)
        with self._changed:
            lost = len(self._waiting) + self._in_work
            error = self._error or (self._outage if lost else None)
            self._waiting.clear()
            self._in_work, self._limit, self._thinned = 0, self.capacity, False
            self._thread = self._deadline = self._error = self._outage = None
        seconds = time.monotonic() - begun
        if number:
            delivered = plural(number - lost, "record")
            _log.info("%s was closed within %.1f s, in which it delivered %s.", self.name, seconds, delivered)
        if lost or error is not None:
            what = f"could not deliver the last {plural(lost, 'record')}" if lost else "failed to deliver some records"
            reason = "" if error is None else f": {type(error).__name__}: {error}"
            message = f"{self.name} {what} before it was closed, within {seconds:.1f} s{reason}"
            warnings.warn(message, ComposerWarning, stacklevel=3)

    def _idle(self) -> bool:
        return not self._waiting and not self._in_work

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
        except RuntimeError:  # the process ends; close() delivers
            return
        self._thread = thread

    def _thin(self) -> bool:
        """Drop every second record that is neither to be kept nor the newest of its kind; tell whether any was."""
        kept: list[tuple[Record, bool]] = []
        seen: set[str] = set()
        drop = False  # whether the next one that may go goes
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
        thinned = len(kept) < len(self._waiting)
        self._waiting = deque(reversed(kept))
        # Where little can go, the next attempt waits for a good many more.
        self._limit = max(self.capacity, len(kept) + self.capacity // 4 + 1)
        return thinned

    def _work(self, thread: threading.Thread | None) -> None:
        """Deliver until told to stop."""
        alone = 0  # records to be delivered one by one
        failing_since: float | None = None
        pause = _FIRST_PAUSE
        while batch := self._take(1 if alone else self.max_batch, thread):
            error: Exception | None = None  # to report
            outage: Exception | None = None
            again: float | None = None  # when to repeat the delivery, in seconds
            try:
                self.deliver([record for record, _ in batch])
                alone, failing_since, pause = max(alone - 1, 0), None, _FIRST_PAUSE
            except (OSError, TryAgain) as failure:
                now, outage = time.monotonic(), failure
                failing_since = now if failing_since is None else failing_since
                again = max(pause, failure.after if isinstance(failure, TryAgain) else 0.0)
                pause = min(2 * pause, _LONGEST_PAUSE)
                if now + again - failing_since > self.patience:
                    error, failing_since = failure, math.inf  # once for an outage
            except Exception as failure:
                if len(batch) > 1:
                    alone, again = len(batch), 0.0
                else:
                    alone, error = max(alone - 1, 0), failure
            with self._changed:
                if self._thread is not thread:  # closed, without waiting for the end of this delivery
                    return
                self._in_work, self._outage, self._error = 0, outage, self._error or error
                if again is not None:
                    self._waiting.extendleft(reversed(batch))
                    self._pause(again, thread)
                self._changed.notify_all()

    def _take(self, number: int, thread: threading.Thread | None) -> list[tuple[Record, bool]]:
        """Wait for records and take them; none when it is time to stop."""
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or self._deadline is not None or self._thread is not thread)
            if self._thread is not thread or (self._deadline is not None and time.monotonic() >= self._deadline):
                return []
            batch = [self._waiting.popleft() for _ in range(min(number, len(self._waiting)))]
            self._in_work = len(batch)
            return batch

    def _pause(self, seconds: float, thread: threading.Thread | None) -> None:
        """Wait before a delivery is repeated, but not beyond the beginning or the end of closing."""
        deadline = self._deadline
        if deadline is not None:
            seconds = min(seconds, max(deadline - time.monotonic(), 0.0))
        self._changed.wait_for(lambda: self._deadline != deadline or self._thread is not thread, seconds)
