"""Plan an event: which handlers of algorithms, callbacks and loggers run at it, in which order."""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Generator
from typing import TYPE_CHECKING, Any, Final

from composer.core.algorithm import Algorithm
from composer.core.algorithm_order import AlgorithmPass, arrange
from composer.core.algorithm_trace import Trace, Traces
from composer.core.callback import Callback
from composer.core.event import Event
from composer.core.handler_owner import Handler, owned, owner_of
from composer.core.hooks import listens, replaces
from composer.core.logger import Logger, LoggerDestination
from composer.core.match_and_apply import bind
from composer.core.model_changes import ModelOutline, describe_changes
from composer.core.watched_list import WatchedList

if TYPE_CHECKING:
    from composer.core.state import State

__all__ = ["Planner", "uses_event_methods"]

_log = logging.getLogger("composer.core.engine")
_HOOKS: Final = frozenset(event.value for event in Event) | {"match", "apply", "run_event", "__wrap_handlers__"}

# Changes that algorithms make to the model at these events, before the first batch, are recorded for its summary.
_SET_UP: Final = frozenset({Event.INIT, Event.BEFORE_LOAD, Event.AFTER_LOAD, Event.FIT_START})

# Queued metrics reach the destinations here, after callbacks have logged and before the destinations' own hooks.
_DELIVERY: Final = {
    Event.BATCH_END: Logger.deliver,
    Event.EPOCH_END: Logger.flush,
    Event.EVAL_END: Logger.flush,
    Event.EVAL_AFTER_ALL: Logger.flush,
    Event.EVAL_STANDALONE_END: Logger.flush,
    Event.PREDICT_END: Logger.flush,
    Event.FIT_END: Logger.flush,
}


class Planner:
    """Plans the handlers of each event and caches the plans.

    Args:
        state: The state, with the algorithms and callbacks.
        logger: The logger, with the destinations.
        logs_traces: Whether to record and log algorithm traces also within a loop. Otherwise they are recorded there
            only if a destination stores them.

    Attributes:
        plans: The handlers by event; only cached entries.
        custom: Whether code from outside this package listens, by event; only cached entries.
        editing: Whether anything that listens may edit the state, by event; only cached entries.
        passes: The user's reorderings of the algorithms.
        traces: The records of the current event.
        changes: Changes of the model by algorithms before the first batch: name and description.

    >>> from composer import State
    >>> state = State(model=torch.nn.Linear(1, 1))
    >>> Planner(state, Logger(state), logs_traces=False).handlers(Event.FIT_START)
    ()
    """

    def __init__(self, state: State, logger: Logger, *, logs_traces: bool) -> None:
        self.plans: dict[str, tuple[Handler, ...]] = {}
        self.passes: list[AlgorithmPass] = WatchedList[AlgorithmPass]([], self.clear)
        self.traces: Traces = {}
        self.changes: dict[tuple[int, Event], tuple[str, str]] = {}
        self._state = state
        self._logger = logger
        self._logs_traces = logs_traces
        self._caches = False
        self.custom: dict[Event, bool] = {}
        self.editing: dict[Event, bool] = {}
        self._hooks: list[Any] = []

    def handlers(self, event: Event) -> tuple[Handler, ...]:
        """Return the handlers of an event in the order in which they run, wrapped by ``__wrap_handlers__``.

        Args:
            event: The event.
        """
        found = self.plans.get(event)
        if found is None:
            found = self._plan(event)
            if self._caches:
                if self.is_custom(event):
                    found = (*found, self._check_hooks)
                self.plans[event] = found
        return found

    def clear(self) -> None:
        """Drop all cached plans."""
        # Cleared in place, since the engine references the dictionaries too.
        self.plans.clear()
        self.custom.clear()
        self.editing.clear()
        if self._caches:
            self._record_hooks()

    @contextlib.contextmanager
    def caching(self) -> Generator[None]:
        """Cache the plans inside this context."""
        if self._caches:  # for example in an evaluation during training
            yield
            return
        self.clear()
        self._caches = True
        self._record_hooks()
        try:
            yield
        finally:
            self._caches = False
            self.clear()

    def _plan(self, event: Event) -> tuple[Handler, ...]:
        handlers = self._collect(event)
        if handlers:
            # The first in the list is outermost.
            for callback in reversed(self._state.callbacks):
                if replaces(callback, Callback, "__wrap_handlers__"):
                    handlers = tuple(callback.__wrap_handlers__(event, handlers))
        return self._logging_handlers(event, handlers) if os.environ.get("ENGINE_DEBUG") else handlers

    def is_custom(self, event: Event) -> bool:
        """Return whether code from outside this package would be called when an event fires.

        Args:
            event: The event.
        """
        found = self.custom.get(event)
        if found is None:
            found = any(_is_custom(one, event) for one in self._listening(event))
            if self._caches:
                self.custom[event] = found
        return found

    def may_edit(self, event: Event) -> bool:
        """Return whether anything that listens to an event may edit the state.

        Args:
            event: The event.
        """
        found = any(not _only_watches(one, event) for one in self._listening(event))
        if self._caches:
            self.editing[event] = found
        return found

    def _listening(self, event: Event) -> list[Any]:
        """Return the algorithms and callbacks that are called at an event."""
        watching = [c for c in self._state.callbacks if listens(c, event) or replaces(c, Callback, "run_event")]
        return [*self._algorithms(event)[1], *watching]

    def _record_hooks(self) -> None:
        listeners = (*self._state.algorithms, *self._state.callbacks)
        classes = {cls for one in listeners for cls in type(one).__mro__ if _package(cls) != "composer"}
        spaces: list[Any] = [getattr(one, "__dict__", {}) for one in (*listeners, *classes - {object})]
        self._hooks = [spaces, sum(map(len, spaces)), [_HOOKS & space.keys() for space in spaces]]

    def _check_hooks(self, state: State, logger: Logger) -> None:
        """Drop cached plans if the code that just ran added a hook to a listener or removed one."""
        hooks = self._hooks
        if (now := sum(map(len, hooks[0]))) == hooks[1]:  # the usual case: no attribute was added or removed
            return
        spaces, _, names = hooks
        if names == [_HOOKS & space.keys() for space in spaces]:
            self._hooks[1] = now
        else:
            self.clear()

    def _algorithms(self, event: Event) -> tuple[list[Algorithm], list[Algorithm]]:
        """Return the algorithms that listen, and those that run, in order: a pass may remove some and add others."""
        listening = [one for one in self._state.algorithms if listens(one, event) or not uses_event_methods(one)]
        return listening, arrange(listening, event, self.passes)

    def _collect(self, event: Event) -> tuple[Handler, ...]:
        listening, ordered = self._algorithms(event)
        known = set(map(id, listening))
        algorithms = [
            self._algorithm_handler(one, event, index, calls_match=id(one) in known)
            for index, one in enumerate(ordered)
        ]
        if event in _SET_UP:
            algorithms = [self._recording_changes(handler, event) for handler in algorithms]
        watching = [c for c in self._state.callbacks if listens(c, event) or replaces(c, Callback, "run_event")]
        callbacks = [_callback_handler(c, event) for c in watching if not isinstance(c, LoggerDestination)]
        loggers = [self._destination_handler(c, event) for c in watching if isinstance(c, LoggerDestination)]
        if event is Event.INIT:
            return (*loggers, *callbacks, *algorithms)
        if event in _DELIVERY and self._logger.destinations:
            deliver = _DELIVERY[event]
            loggers.insert(0, lambda state, logger: deliver(logger))
        return (*algorithms, *callbacks, *loggers)

    def _algorithm_handler(self, algorithm: Algorithm, event: Event, index: int, *, calls_match: bool) -> Handler:
        kept = not self._logs_traces and self._logger.keeps_traces
        traced = self._logs_traces or kept or not self._caches
        if uses_event_methods(algorithm) and not traced:
            return _hook(algorithm, event)
        match = bind(algorithm, "match") if calls_match else _always  # an algorithm that a pass added always runs
        apply = bind(algorithm, "apply")

        def run(state: State, logger: Logger) -> None:
            if match(event, state, logger):
                apply(event, state, logger)

        def recorded(state: State, logger: Logger) -> None:
            ran = bool(match(event, state, logger))
            code = apply(event, state, logger) if ran else None
            name = type(algorithm).__name__
            self.traces[f"{index}.{name}/{event.value}"] = Trace(name, event, code, index, ran)
            if self._logs_traces:
                logger.log_traces({f"algorithm_traces/{name}/{event.value}": int(ran)})
            elif kept and ran:  # records of algorithms that did not run would fill the file
                logger.log_traces({f"algorithm_traces/{name}/{event.value}": 1}, if_stored=True)

        return owned(recorded if traced else run, algorithm)

    def _recording_changes(self, handler: Handler, event: Event) -> Handler:
        """Wrap a handler so that its changes of the model are recorded."""
        owner, changes = owner_of(handler), self.changes  # without self, which would be a reference cycle

        def run(state: State, logger: Logger) -> None:
            before = ModelOutline(state.model)
            handler(state, logger)
            if text := describe_changes(before, ModelOutline(state.model)):
                changes[id(owner), event] = (type(owner).__name__, text)

        return owned(run, owner)

    def _destination_handler(self, destination: LoggerDestination, event: Event) -> Handler:
        """Wrap a logger so that its failure does not stop training; a failure during setup is raised."""
        handler = _callback_handler(destination, event)
        if event in (Event.INIT, Event.BEFORE_LOAD, Event.AFTER_LOAD):
            return handler

        def guarded(state: State, logger: Logger) -> None:
            try:  # not guard(), which costs a microsecond
                handler(state, logger)
            except Exception as error:
                logger.report(destination, error)

        return owned(guarded, destination)

    def _logging_handlers(self, event: Event, handlers: tuple[Handler, ...]) -> tuple[Handler, ...]:
        """Wrap handlers so that the event and each handler are logged before they run, for ``ENGINE_DEBUG=1``."""

        def announce(handler: Handler | None) -> Handler:
            owner = owner_of(handler)
            role = "algorithm" if any(owner is one for one in self._state.algorithms) else "callback"
            what = "Running event" if handler is None else f"Running {role} {type(owner).__name__}"

            def run(state: State, logger: Logger) -> None:
                _log.debug("%s: %s", _position(state, event), what)
                if handler is not None:
                    handler(state, logger)

            return owned(run, owner)

        return tuple(announce(one) if one is None or owner_of(one) is not None else one for one in (None, *handlers))


def uses_event_methods(algorithm: Algorithm) -> bool:
    """Return whether an algorithm implements methods named after events rather than match and apply.

    Args:
        algorithm: The algorithm.

    >>> uses_event_methods(Algorithm())
    True
    """
    return not replaces(algorithm, Algorithm, "match") and not replaces(algorithm, Algorithm, "apply")


def _package(cls: type) -> str:
    return cls.__module__.partition(".")[0]


def _is_custom(listener: Any, event: Event) -> bool:
    """Return whether the hook of a listener at an event is defined, or partly defined, outside this package."""
    return event.value in getattr(listener, "__dict__", {}) or _package(type(listener)) != "composer"


def _only_watches(listener: Any, event: Event) -> bool:
    """Return whether a listener is a callback or logger that a run of this package only watches with."""
    watches = type(listener).__module__.startswith(("composer.callbacks.", "composer.loggers."))
    return watches and not _is_custom(listener, event)


def _hook(listener: Any, event: Event) -> Handler:
    """Return the hook method of a listener; that of a custom class is looked up at each call, as it may be replaced."""
    name = event.value
    if not _is_custom(listener, event):
        return getattr(listener, name)

    def run(state: State, logger: Logger) -> None:
        getattr(listener, name)(state, logger)

    return owned(run, listener)


def _callback_handler(callback: Callback, event: Event) -> Handler:
    if not replaces(callback, Callback, "run_event"):
        return _hook(callback, event)

    def run_event(state: State, logger: Logger) -> None:
        callback.run_event(event, state, logger)

    return owned(run_event, callback)


def _always(event: Event, state: State, logger: Logger) -> bool:
    return True


def _position(state: State, event: Event) -> str:
    now = [("ep", state.timestamp.epoch), ("ba", state.timestamp.batch)]
    if event.is_eval:
        now.append(("eval_ba", state.eval_timestamp.batch))
    if event.is_predict:
        now.append(("predict_ba", state.predict_timestamp.batch))
    return "".join(f"[{name}={int(time)}]" for name, time in now) + f"[event={event.name}]"
