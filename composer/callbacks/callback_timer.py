"""CallbackTimer: which algorithm, callback or logger costs how much of a step."""

from __future__ import annotations

import time
from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from composer._text import positive
from composer.core.callback import Callback
from composer.core.event import Event
from composer.core.handler_owner import Handler, owned, owner_of
from composer.core.time import TimeUnit

if TYPE_CHECKING:
    from composer.core.logger import Logger
    from composer.core.state import State

__all__ = ["CallbackTimer", "Cost"]

_COLUMNS = ["name", "event", "calls", "total (s)", "mean (us)", "longest (us)"]


@dataclass
class Cost:
    """What calls have cost so far.

    Attributes:
        calls: Number of calls.
        total: Seconds in all of them.
        longest: Seconds in the longest.

    >>> cost = Cost()
    >>> cost.add(0.5)
    >>> cost.add(1.5)
    >>> cost.calls, cost.mean, cost.longest
    (2, 1.0, 1.5)
    """

    calls: int = 0
    total: float = 0.0
    longest: float = 0.0

    @property
    def mean(self) -> float:
        """Seconds a call."""
        return self.total / self.calls if self.calls else 0.0

    def add(self, seconds: float) -> None:
        """Count a call.

        Args:
            seconds: How long it took.
        """
        self.calls += 1
        self.total += seconds
        if seconds > self.longest:
            self.longest = seconds


@dataclass
class _Part:
    """The costs of one algorithm, callback or logger, by event."""

    name: str
    owner: Any  # held, so that nobody else gets its id
    costs: defaultdict[Event, Cost] = field(default_factory=lambda: defaultdict(Cost))
    logged: float = 0.0

    @property
    def total(self) -> float:
        return sum(cost.total for cost in self.costs.values())


class CallbackTimer(Callback):
    """Measures the time that every algorithm, callback and logger takes, and logs who costs how much.

    Every ``batch_log_interval`` batches it logs for each of them ``callback_time/{name}``: milliseconds a batch, the
    mean since the last time. When training ends there is a table ``callback_time`` with a row for each of them and
    each event at which it acts, the most expensive first; :attr:`costs` has the same figures at any time. What an
    engine does by itself, handing metrics to the loggers, is counted as ``Logger``.

    Only time on the host is measured: work that a handler gives to an accelerator goes on after it returns, and
    nothing waits for it. What a handler calls through events of its own counts for those who act at these.

    Two clock readings for each call are what it costs, about a microsecond in all.

    Args:
        batch_log_interval: Number of batches between two points of the curves.

    Raises:
        TypeError: ``batch_log_interval`` is not a number.
        ValueError: It is not positive.

    >>> from composer import Callback, Engine, State
    >>> class Slow(Callback):
    ...     def batch_end(self, state, logger):
    ...         time.sleep(0.01)
    >>> timer = CallbackTimer()
    >>> engine = Engine(State(model=torch.nn.Linear(1, 1)), callbacks=[timer, Slow()])
    >>> _ = engine.run_event("batch_end")
    >>> timer.costs["Slow", "batch_end"].total > 0.009
    True
    """

    def __init__(self, batch_log_interval: int = 100) -> None:
        self.batch_log_interval = positive("batch_log_interval", batch_log_interval)
        self._parts: dict[int, _Part] = {}
        self._inner = 0.0
        self._batches = 0

    @property
    def costs(self) -> dict[tuple[str, str], Cost]:
        """What was measured, by name and event; of two of one class the second has ``Name-2``."""
        return {(part.name, event.value): cost for part in self._parts.values() for event, cost in part.costs.items()}

    def __wrap_handlers__(self, event: Event, handlers: tuple[Handler, ...]) -> tuple[Handler, ...]:
        if event is Event.INIT:
            self._parts.clear()  # a new run
        return tuple(self._timed(handler, event) for handler in handlers)

    def fit_start(self, state: State, logger: Logger) -> None:
        self._batches = 0
        for part in self._parts.values():
            part.logged = part.total

    def batch_end(self, state: State, logger: Logger) -> None:
        self._batches += 1
        if state.timestamp.count(TimeUnit.BATCH) % self.batch_log_interval or not logger.destinations:
            return
        metrics: dict[str, Any] = {}
        for part in self._parts.values():
            total = part.total
            metrics[f"callback_time/{part.name}"] = (total - part.logged) / self._batches * 1e3
            part.logged = total
        self._batches = 0
        logger.enqueue(metrics)

    def fit_end(self, state: State, logger: Logger) -> None:
        costly = sorted(self.costs.items(), key=lambda item: -item[1].total)
        rows: list[list[Any]] = [
            [name, event, cost.calls, round(cost.total, 6), round(cost.mean * 1e6, 2), round(cost.longest * 1e6, 2)]
            for (name, event), cost in costly
        ]
        logger.log_table(_COLUMNS, rows, name="callback_time")

    def close(self, state: State, logger: Logger) -> None:
        for part in self._parts.values():
            part.owner = None  # the costs outlive the run; whose they are must not

    def _timed(self, handler: Handler, event: Event) -> Handler:
        """Return a handler that measures another."""
        owner = owner_of(handler)
        cost = self._part_of(owner).costs[event]
        clock = time.perf_counter

        def timed(state: State, logger: Logger) -> object:
            outer, self._inner = self._inner, 0.0
            begin = clock()
            try:
                return handler(state, logger)
            finally:
                elapsed = clock() - begin
                cost.add(elapsed - self._inner)
                self._inner = outer + elapsed

        return owned(timed, owner)

    def _part_of(self, owner: Any) -> _Part:
        """Return the costs of somebody, under a name that nobody else has."""
        found = self._parts.get(id(owner))
        if found is None:
            kind = "Logger" if owner is None else type(owner).__name__
            same = sum(part.name.partition("-")[0] == kind for part in self._parts.values())
            found = self._parts[id(owner)] = _Part(f"{kind}-{same + 1}" if same else kind, owner)
        return found
