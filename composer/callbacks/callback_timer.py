"""CallbackTimer: profile how much of each step every algorithm, callback and logger takes."""

from __future__ import annotations

import time
from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from composer._numbers import whole_number
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
    """Accumulated time of a handler's calls.

    Attributes:
        calls: Number of calls.
        total: Total seconds.
        longest: Seconds of the longest call.

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
        """Mean seconds per call."""
        return self.total / self.calls if self.calls else 0.0

    def add(self, seconds: float) -> None:
        """Count a call.

        Args:
            seconds: Duration of the call.
        """
        self.calls += 1
        self.total += seconds
        if seconds > self.longest:
            self.longest = seconds


@dataclass
class _OwnerCosts:
    """The costs of one algorithm, callback or logger, by event."""

    name: str
    owner: Any  # a strong reference, so that its id is not reused
    costs: defaultdict[Event, Cost] = field(default_factory=lambda: defaultdict(Cost))
    logged: float = 0.0

    @property
    def total(self) -> float:
        return sum(cost.total for cost in self.costs.values())


class CallbackTimer(Callback):
    """Measures and logs the host time that each algorithm, callback and logger takes.

    Every ``batch_log_interval`` batches it logs ``callback_time/{name}`` for each of them: the mean milliseconds per
    batch since the last log. When training ends, it logs a table ``callback_time`` with a row for each handler and
    event, most expensive first; :attr:`costs` returns the same figures at any time. Work that the engine itself does,
    such as passing metrics to the loggers, is counted as ``Logger``.

    Only host time is measured: accelerator work that a handler launches continues after it returns, without a
    synchronization. If a handler triggers other events, the time spent in them is attributed to the handlers of those
    events.

    The overhead is two clock readings per call, about a microsecond in total.

    Args:
        batch_log_interval: Number of batches between two logged points.

    Raises:
        TypeError: ``batch_log_interval`` is not an integer.
        ValueError: ``batch_log_interval`` is not positive.

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
        self.batch_log_interval = whole_number("batch_log_interval", batch_log_interval, minimum=1)
        self._owners: dict[int, _OwnerCosts] = {}
        self._inner = 0.0
        self._batches = 0

    @property
    def costs(self) -> dict[tuple[str, str], Cost]:
        """Measured costs by name and event; the second instance of a class is named ``Name-2``."""
        return {
            (entry.name, event.value): cost for entry in self._owners.values() for event, cost in entry.costs.items()
        }

    def __wrap_handlers__(self, event: Event, handlers: tuple[Handler, ...]) -> tuple[Handler, ...]:
        if event is Event.INIT:
            self._owners.clear()  # a new run
        return tuple(self._timed(handler, event) for handler in handlers)

    def fit_start(self, state: State, logger: Logger) -> None:
        self._batches = 0
        for entry in self._owners.values():
            entry.logged = entry.total

    def batch_end(self, state: State, logger: Logger) -> None:
        self._batches += 1
        if state.timestamp.count(TimeUnit.BATCH) % self.batch_log_interval or not logger.destinations:
            return
        metrics: dict[str, Any] = {}
        for entry in self._owners.values():
            total = entry.total
            metrics[f"callback_time/{entry.name}"] = (total - entry.logged) / self._batches * 1e3
            entry.logged = total
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
        for entry in self._owners.values():
            entry.owner = None  # the costs outlive the run, but must not keep its objects alive

    def _timed(self, handler: Handler, event: Event) -> Handler:
        """Wrap a handler to measure its time."""
        owner = owner_of(handler)
        cost = self._costs_of(owner).costs[event]
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

    def _costs_of(self, owner: Any) -> _OwnerCosts:
        """Return the costs of an algorithm, callback or logger, created under a unique name if needed."""
        found = self._owners.get(id(owner))
        if found is None:
            cls = "Logger" if owner is None else type(owner).__name__
            same = sum(entry.name.partition("-")[0] == cls for entry in self._owners.values())
            found = self._owners[id(owner)] = _OwnerCosts(f"{cls}-{same + 1}" if same else cls, owner)
        return found
