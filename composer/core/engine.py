"""Runs algorithms, callbacks and loggers at the events of a loop."""

from __future__ import annotations

import logging
import weakref
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from composer.core.algorithm import Algorithm
from composer.core.binding import bind
from composer.core.callback import Callback
from composer.core.event import Event
from composer.core.handlers import Handler, owned, owner_of
from composer.core.listener_check import check_listener
from composer.core.logger import Logger, LoggerDestination
from composer.core.model_changes import ModelOutline, describe_changes
from composer.core.order import AlgorithmPass, arrange, warn_of_bad_company
from composer.core.trace import Trace, Traces
from composer.trees import ensure_tuple

if TYPE_CHECKING:
    from composer.core.hooks import Hooks
    from composer.core.state import State

__all__ = ["Engine"]

_log = logging.getLogger(__name__)

# What algorithms change in the model here, before the first batch, is kept for its summary.
_SET_UP = frozenset({Event.INIT, Event.BEFORE_LOAD, Event.AFTER_LOAD, Event.FIT_START})

# Queued metrics reach the destinations here, after callbacks have logged and before the destinations' own hooks.
_DELIVERY = {
    Event.BATCH_END: Logger.deliver,
    Event.EPOCH_END: Logger.flush,
    Event.EVAL_END: Logger.flush,
    Event.EVAL_AFTER_ALL: Logger.flush,
    Event.EVAL_STANDALONE_END: Logger.flush,
    Event.PREDICT_END: Logger.flush,
    Event.FIT_END: Logger.flush,
}


class Engine:
    """Fires events: calls what listens to each, in a fixed order.

    Algorithms go first (see :func:`.arrange`), then callbacks, then loggers; at ``INIT`` loggers, callbacks,
    algorithms. For each event a plan of what to call is made once, when it first fires; it is made again when the
    lists in the state change. An event that nobody listens to costs one look-up.

    Args:
        state: The state that handlers edit.
        logger: Takes metrics; made from the loggers among the callbacks by default.
        algorithm_passes: Reorderings of the algorithms at an event, applied after the order by slot: one function
            ``(algorithms, event) -> algorithms`` or several, each alone or with its place as ``(function, index)``.
        algorithms: Put into ``state.algorithms`` if given.
        callbacks: Put into ``state.callbacks`` if given; loggers too.
        record_traces: Whether :meth:`run_event` returns a record of each algorithm that it asked.

    Raises:
        TypeError: Something among the algorithms, callbacks or passes is none, an algorithm can never act, or a hook
            takes other parameters than it is given. Methods that look like hooks but are none raise a warning.

    >>> from composer import Algorithm, State
    >>> class Hello(Algorithm):
    ...     def fit_start(self, state, logger):
    ...         print("hello")
    >>> engine = Engine(State(model=torch.nn.Linear(1, 1)), algorithms=[Hello()])
    >>> _ = engine.run_event("fit_start")
    hello
    """

    def __init__(
        self,
        state: State,
        logger: Logger | None = None,
        algorithm_passes: AlgorithmPass | Sequence[AlgorithmPass | tuple[AlgorithmPass, int]] | None = None,
        *,
        algorithms: Sequence[Algorithm] | Algorithm | None = None,
        callbacks: Sequence[Callback] | Callback | None = None,
        record_traces: bool = False,
    ) -> None:
        if algorithms is not None:
            state.algorithms = ensure_tuple(algorithms)
        if callbacks is not None:
            state.callbacks = ensure_tuple(callbacks)
        self.state = state
        self._plan: dict[str, tuple[Handler, ...]] = {}
        self._custom: dict[Event, bool] = {}
        self._checked: tuple[Algorithm, ...] = ()
        self._changes: dict[tuple[int, Event], tuple[str, str]] = {}
        self._listeners_changed()
        if logger is None:
            logger = Logger(state, [c for c in state.callbacks if isinstance(c, LoggerDestination)])
        self.logger = logger
        self._record_traces = record_traces
        self._traces: Traces = {}
        self._passes: list[AlgorithmPass] = []
        for algorithm_pass, index in _passes(algorithm_passes):
            self.register_pass(algorithm_pass, index)
        # Weak, so that the state does not keep its engine, and with it the open callbacks, alive.
        notice = weakref.WeakMethod(self._listeners_changed)
        state.on_listeners_changed(lambda: (method := notice()) and method())
        self._finalizer = weakref.finalize(self, _close, state, self.logger)

    def run_event(self, event: Event | str) -> Traces:
        """Call everything that listens to an event.

        Args:
            event: The event or its name.

        Returns:
            A record for each algorithm asked if ``record_traces`` is set, else nothing.

        Raises:
            ValueError: There is no event of that name.
            Exception: Whatever a handler raises; a note says whose it was.
        """
        handlers = self._plan.get(event)
        if handlers is None:
            event = Event(event)
            handlers = self._handlers(event)
        if not handlers:
            return {}
        return self._call(handlers, event)

    def run_marker_only_event(self, event: Event | str) -> None:
        """Mark an event that no algorithm or callback may act at; present for loops written for older versions.

        Args:
            event: The event or its name.
        """
        Event(event)

    def listens(self, event: Event) -> bool:
        """Tell whether firing an event would call anything.

        Args:
            event: The event.
        """
        return bool(self._handlers(event))

    def custom_listens(self, event: Event) -> bool:
        """Tell whether code from outside this package would be called when an event fires.

        Args:
            event: The event.
        """
        found = self._custom.get(event)
        if found is None:
            algorithms = any(_is_custom(a, event) and _asks(a, event) for a in self.state.algorithms)
            watching = [c for c in self.state.callbacks if _is_custom(c, event)]
            callbacks = any(c.overrides(event) or _replaces(c, Callback, "run_event") for c in watching)
            found = self._custom[event] = algorithms or callbacks
        return found

    def register_pass(self, algorithm_pass: AlgorithmPass, index: int = -1) -> None:
        """Add a reordering of the algorithms.

        Args:
            algorithm_pass: Gets the listening algorithms and the event, returns them reordered.
            index: Place among the passes; -1 is the end.

        Raises:
            TypeError: It cannot be called.
        """
        if not callable(algorithm_pass) or not isinstance(index, int):
            raise _bad_pass(algorithm_pass if index == -1 else (algorithm_pass, index))
        self._passes.insert(len(self._passes) if index == -1 else index, algorithm_pass)
        self._plan = {}

    @property
    def passes(self) -> tuple[AlgorithmPass, ...]:
        """The reorderings of the algorithms, in the order in which they are applied."""
        return tuple(self._passes)

    @property
    def model_changes(self) -> tuple[tuple[str, str], ...]:
        """What algorithms changed in the model before the first batch: for each its name, and what it did."""
        return tuple(self._changes.values())

    def close(self) -> None:
        """Close every callback, loggers last, each even if another fails; further calls do nothing.

        Also runs when the engine is discarded or the interpreter exits.
        """
        self._finalizer()

    @property
    def closed(self) -> bool:
        """Whether :meth:`close` has run."""
        return not self._finalizer.alive

    def _listeners_changed(self) -> None:
        """Make new plans, of listeners that can run."""
        self._plan, self._custom = {}, {}
        for callback in self.state.callbacks:
            _check_kind("callbacks", callback, Callback)
            check_listener(callback)
        algorithms = tuple(self.state.algorithms)
        if algorithms != self._checked:
            for algorithm in algorithms:
                _check(algorithm)
            warn_of_bad_company(algorithms)
            self._checked = algorithms

    def _handlers(self, event: Event) -> tuple[Handler, ...]:
        handlers = self._plan.get(event)
        if handlers is None:
            handlers = self._plan[event] = self._plan_event(event)
        return handlers

    def _call(self, handlers: tuple[Handler, ...], event: Event | str) -> Traces:
        state, logger = self.state, self.logger
        # A handler may fire events of its own, whose records are not ours.
        outer, self._traces = self._traces, {}
        handler = None
        try:
            for handler in handlers:
                handler(state, logger)
            return self._traces
        except BaseException as error:
            owner = owner_of(handler)
            if owner is not None:
                error.add_note(f"Raised by {type(owner).__name__} at the event {str(event)!r}.")
            raise
        finally:
            self._traces = outer

    def _plan_event(self, event: Event) -> tuple[Handler, ...]:
        """Collect the handlers of an event in the order in which they run, wrapped by those who ask for it."""
        handlers = self._collect(event)
        if not handlers:
            return ()
        # The first in the list is outermost.
        for callback in reversed(self.state.callbacks):
            if _replaces(callback, Callback, "wrap_handlers"):
                handlers = tuple(callback.wrap_handlers(event, handlers))
        return handlers

    def _collect(self, event: Event) -> tuple[Handler, ...]:
        """Return the handlers of an event in the order in which they run."""
        listening = [algorithm for algorithm in self.state.algorithms if _asks(algorithm, event)]
        ordered = arrange(listening, event, self._passes)
        algorithms = [self._algorithm_handler(a, event, place) for place, a in enumerate(ordered)]
        if event in _SET_UP:
            algorithms = [self._noting_changes(handler, event) for handler in algorithms]
        watching = [c for c in self.state.callbacks if c.overrides(event) or _replaces(c, Callback, "run_event")]
        callbacks = [_callback_handler(c, event) for c in watching if not isinstance(c, LoggerDestination)]
        loggers = [self._destination_handler(c, event) for c in watching if isinstance(c, LoggerDestination)]
        if event is Event.INIT:
            return (*loggers, *callbacks, *algorithms)
        if event in _DELIVERY and self.logger.destinations:
            deliver = _DELIVERY[event]
            loggers.insert(0, lambda state, logger: deliver(logger))
        return (*algorithms, *callbacks, *loggers)

    def _algorithm_handler(self, algorithm: Algorithm, event: Event, place: int) -> Handler:
        if _names_methods(algorithm) and event.value not in vars(algorithm) and not self._record_traces:
            return getattr(algorithm, event.value)
        match, apply = bind(algorithm, "match"), bind(algorithm, "apply")

        def run(state: State, logger: Logger) -> None:
            if match(event, state, logger):
                apply(event, state, logger)

        def traced(state: State, logger: Logger) -> None:
            ran = bool(match(event, state, logger))
            code = apply(event, state, logger) if ran else None
            name = type(algorithm).__name__
            self._traces[f"{place}.{name}/{event.value}"] = Trace(name, event, code, place, ran)
            logger.log_traces({f"algorithm_traces/{name}/{event.value}": int(ran)})

        return owned(traced if self._record_traces else run, algorithm)

    def _noting_changes(self, handler: Handler, event: Event) -> Handler:
        """Have a handler's changes of the model noted."""
        owner, changes = owner_of(handler), self._changes  # not the engine, which would keep itself alive

        def run(state: State, logger: Logger) -> None:
            before = ModelOutline(state.model)
            handler(state, logger)
            if text := describe_changes(before, ModelOutline(state.model)):
                changes[id(owner), event] = (type(owner).__name__, text)

        return owned(run, owner)

    def _destination_handler(self, destination: LoggerDestination, event: Event) -> Handler:
        """Keep a failing tracker from ending the training; before that it is a mistake of the set-up and does."""
        handler = _callback_handler(destination, event)
        if event in (Event.INIT, Event.BEFORE_LOAD, Event.AFTER_LOAD):
            return handler

        def guarded(state: State, logger: Logger) -> None:
            try:  # not guard(), which costs a microsecond
                handler(state, logger)
            except Exception as error:
                logger.report(destination, error)

        return owned(guarded, destination)


def _names_methods(algorithm: Algorithm) -> bool:
    """Whether the algorithm is written by methods named after events rather than by match and apply."""
    return not _replaces(algorithm, Algorithm, "match") and not _replaces(algorithm, Algorithm, "apply")


def _is_custom(listener: Hooks, event: Event) -> bool:
    """Whether what a listener does at an event is not, or not only, written in this package."""
    return event.value in vars(listener) or type(listener).__module__.partition(".")[0] != "composer"


def _asks(algorithm: Algorithm, event: Event) -> bool:
    return algorithm.overrides(event) or not _names_methods(algorithm)


def _replaces(listener: Hooks, base: type[Hooks], method: str) -> bool:
    """Whether a listener, by its class or by itself, has a method of its own in place of that of a base class."""
    return method in vars(listener) or getattr(type(listener), method) is not getattr(base, method)


def _check_kind(argument: str, listener: object, kind: type[Hooks]) -> None:
    if not isinstance(listener, kind):
        remedy = f" Make an object of it: {listener.__name__}(...)." if isinstance(listener, type) else ""
        raise TypeError(f"{argument} must be {kind.__name__} objects; got {listener!r}.{remedy}")


def _check(algorithm: Algorithm) -> None:
    """Refuse, when it is registered, an algorithm that could not run."""
    _check_kind("algorithms", algorithm, Algorithm)
    check_listener(algorithm)
    if _names_methods(algorithm):
        return
    bind(algorithm, "match")
    bind(algorithm, "apply")
    if not any(algorithm.overrides(event) for event in Event):
        for missing, there in (("apply", "match"), ("match", "apply")):
            if not _replaces(algorithm, Algorithm, missing):
                raise TypeError(
                    f"{type(algorithm).__name__} defines {there} but not {missing}, so it would never act. Define "
                    f"both, or write methods named after the events instead."
                )


def _callback_handler(callback: Callback, event: Event) -> Handler:
    if not _replaces(callback, Callback, "run_event") and event.value not in vars(callback):
        return getattr(callback, event.value)

    def run_event(state: State, logger: Logger) -> None:
        callback.run_event(event, state, logger)

    return owned(run_event, callback)


def _passes(given: Any) -> Iterator[tuple[AlgorithmPass, int]]:
    """The passes in whichever form they are given, each with its place."""
    one_with_index = isinstance(given, tuple) and len(given) == 2 and isinstance(given[1], int)
    entries: tuple[Any, ...] = (given,) if one_with_index else ensure_tuple(given)
    for entry in entries:
        if not isinstance(entry, tuple):
            yield entry, -1
        elif len(entry) == 2:
            yield entry
        else:
            raise _bad_pass(entry)


def _bad_pass(given: object) -> TypeError:
    return TypeError(
        f"algorithm_passes must be functions (algorithms, event) -> algorithms, each alone or with its index as "
        f"(function, index); got {given!r}."
    )


def _close(state: State, logger: Logger) -> None:
    """Close all callbacks, whatever any of them does; those that log while they close find the loggers open."""
    logger.deferred = False
    try:
        logger.flush()
    except Exception:
        _log.exception("The last metrics could not be delivered.")
    closed: list[Callback] = []
    for callback in sorted(state.callbacks, key=lambda callback: isinstance(callback, LoggerDestination)):
        try:
            callback.close(state, logger)
            closed.append(callback)
        except Exception:
            _log.exception("%s.close failed.", type(callback).__name__)
    for callback in closed:
        try:
            callback.post_close()
        except Exception:
            _log.exception("%s.post_close failed.", type(callback).__name__)
