"""LedgerClock: assign each second of a trainer's wall time to one category, at two clock readings a step."""

from __future__ import annotations

import contextlib
import functools
import math
import secrets
import time
from collections.abc import Callable, Generator
from time import perf_counter
from typing import Any, ParamSpec, TypeVar

from composer import dist
from composer.ledger.category import MEASURED, Category
from composer.ledger.compile_time import compile_seconds, watch_compilation
from composer.ledger.process_start import claim_start
from composer.ledger.segment import Position, Ranks

__all__ = ["LedgerClock", "timed_as"]

P = ParamSpec("P")
T = TypeVar("T")

_NUMBER = {category: number for number, category in enumerate(MEASURED)}
_TRAINING, _REPEATED, _DATA = _NUMBER[Category.TRAINING], _NUMBER[Category.REPEATED], _NUMBER[Category.DATA]
_START_UP, _OTHER, _COMPILING = _NUMBER[Category.START_UP], _NUMBER[Category.OTHER], _NUMBER[Category.COMPILING]

# Writing takes at most this share of the time.
_SHARE_OF_WRITING = 5e-4


class LedgerClock:
    """Assigns each second to the category that is current, so that the sums are the time since the start.

    It starts in the category ``START_UP``. After a call of the trainer has ended, nothing is counted; if another call
    follows, the time between them is ``OTHER``. The clock reads the time of the host: on an accelerator, a category
    includes waiting for steps that were queued before.

    Attributes:
        segment: Identifies what this clock measures in a ledger.
        started: When it started, in seconds since 1970.
        resumed: The position in the ledger that was saved in the loaded checkpoint; None without one.
        ranks: On rank 0, seconds by category of every rank at the last :meth:`exchange`; empty on a single rank.

    >>> clock = LedgerClock()
    >>> with clock.call(Category.EVALUATION):
    ...     with clock.during(Category.SAVING):
    ...         time.sleep(0.01)
    >>> seconds = clock.seconds()
    >>> seconds[Category.SAVING] >= 0.01, seconds[Category.EVALUATION] < seconds[Category.SAVING]
    (True, True)
    """

    def __init__(self) -> None:
        self.segment = secrets.token_hex(8)
        self.started = time.time()
        self.resumed: Position | None = None
        self.ranks: Ranks = ()
        self._origin = self._since = perf_counter()
        self._seconds = [0.0] * len(MEASURED)
        self._current, self._step = _START_UP, _TRAINING
        self._depth = self._num_calls = self._repeats = 0
        self._compiled = compile_seconds()
        self._due = math.inf
        self._write: Callable[[], object] | None = None
        self._interval = math.inf

    def __reduce__(self) -> tuple[Any, ...]:
        """Copies, and clocks in other processes, measure their own time."""
        return LedgerClock, ()

    def wait(self) -> None:
        """Begin to wait for a batch, after a step; also writes, if that is due."""
        now = perf_counter()
        self._seconds[self._current] += now - self._since
        self._since = now
        if now >= self._due:
            self.write()
        self._current = _DATA

    def train(self) -> None:
        """Begin a step, after its batch was fetched."""
        now = perf_counter()
        self._seconds[_DATA] += now - self._since
        self._since = now
        self._current = self._step = _TRAINING
        if self._repeats:
            self._repeats -= 1
            self._current = self._step = _REPEATED

    def end_epoch(self) -> None:
        """Stop waiting for a batch, since there is none."""
        self.enter(Category.TRAINING)

    def repeat(self, steps: int) -> None:
        """Count the next steps as repeated.

        Args:
            steps: Number of steps.
        """
        self._repeats = steps

    def tick(self) -> None:
        """Write, if that is due."""
        if perf_counter() >= self._due:
            self.write()

    def enter(self, category: Category) -> int:
        """Change the current category; return the previous one, for :meth:`leave`.

        Args:
            category: The category from now on.
        """
        return self._switch(_NUMBER[category])

    def leave(self, previous: int) -> None:
        """Return to a category.

        Args:
            previous: The result of :meth:`enter`.
        """
        self._switch(previous)

    @contextlib.contextmanager
    def during(self, category: Category) -> Generator[None]:
        """Count the time in this context in a category.

        Args:
            category: The category.
        """
        previous = self.enter(category)
        try:
            yield
        finally:
            self.leave(previous)

    @contextlib.contextmanager
    def call(self, category: Category) -> Generator[None]:
        """Count the time of a call of the trainer; calls may be nested.

        Args:
            category: The category at its start.
        """
        self._claim_process()
        watch_compilation()
        previous = self.enter(category)
        self._depth += 1
        self._num_calls += 1
        try:
            yield
        finally:
            self.leave(previous if self._depth > 1 else _OTHER)
            self._depth -= 1
            if not self._depth:
                self.write()

    def seconds(self) -> dict[Category, float]:
        """Return the seconds by category so far."""
        self._switch(self._current)
        return dict(zip(MEASURED, self._seconds, strict=True))

    def exchange(self) -> None:
        """Gather the seconds of all ranks on rank 0, for the goodput of the run; all ranks must call this."""
        if dist.get_world_size() > 1:
            self.ranks = tuple(dist.gather_object(self.seconds()) or ())

    def position(self) -> Position:
        """Return the position in the ledger, for a checkpoint."""
        return Position(self.segment, self.seconds(), self.ranks)

    def write_by(self, write: Callable[[], object] | None, interval: float = math.inf) -> None:
        """Set what :meth:`write` calls.

        Args:
            write: The function; None for nothing.
            interval: Seconds from one call to the next.
        """
        self._write, self._interval = write, interval
        self._due = math.inf if write is None else perf_counter() + interval

    def write(self) -> None:
        """Call the function that was given to :meth:`write_by`; more rarely if it is slow."""
        if self._write is None:
            return
        watch_compilation()
        began = perf_counter()
        self._write()
        now = perf_counter()
        self._due = math.inf if self._write is None else now + max(self._interval, (now - began) / _SHARE_OF_WRITING)

    def _switch(self, number: int) -> int:
        """Count the time since the last reading, and change the category."""
        now, previous = perf_counter(), self._current
        if self._is_idle and number == previous:
            return previous
        self._seconds[previous] += now - self._since
        self._since, self._current = now, number
        compiled = compile_seconds()
        if compiled != self._compiled:
            compiling = self._step if previous == _DATA else previous  # it was in the steps before
            # Not more than was counted: another thread may compile as well.
            moved = min(compiled - self._compiled, self._seconds[compiling])
            self._seconds[compiling] -= moved
            self._seconds[_COMPILING] += moved
            self._compiled = compiled
        return previous

    @property
    def _is_idle(self) -> bool:
        """Whether all calls have ended: whether the time since then belongs to the run is not known yet."""
        return self._depth == 0 and self._num_calls > 0 and self._current == _OTHER

    def _claim_process(self) -> None:
        """Count the time before this clock as start-up, if the process was started for this trainer."""
        if self._num_calls:
            return
        start = claim_start()
        if start is not None:
            before = max(self._origin - start, 0.0)
            self._seconds[_START_UP] += before
            self.started -= before


def timed_as(category: Category, *, state_at: int = 0) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """Decorate a function so that its time counts in a category of the run's ledger.

    Args:
        category: The category.
        state_at: Position of the argument that is the state of the run.

    >>> from composer import State
    >>> state = State(torch.nn.Linear(1, 1))
    >>> timed_as(Category.SAVING)(lambda state: time.sleep(0.01))(state)
    >>> state.clock.seconds()[Category.SAVING] >= 0.01
    True
    """

    def decorate(function: Callable[P, T]) -> Callable[P, T]:
        @functools.wraps(function)
        def timed(*args: P.args, **kwargs: P.kwargs) -> T:
            state: Any = args[state_at] if len(args) > state_at else kwargs["state"]
            with state.clock.during(category):
                return function(*args, **kwargs)

        return timed

    return decorate
