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

__all__ = ["Planner", "names_methods"]

_log = logging.getLogger("composer.core.engine")
_HOOKS: Final = frozenset(event.value for event in Event) | {"match", "apply", "run_event", "__wrap_handlers__"}

# What algorithms change in the model here, before the first batch, is kept for its summary.
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
    """Collects what listens to an event.

    Args:
        state: Has the algorithms and callbacks.
        logger: Has the destinations.
        logs_traces: Whether records of algorithms are made within a loop too, and logged. Without it they are made
            there where a destination keeps them.

    Attributes:
        plans: The handlers by event, as far as they are kept.
        custom: Whether code from outside this package listens, by event, as far as that is kept.
        passes: The user's reorderings of the algorithms.
        traces: The records of the event that fires.
        changes: What algorithms changed in the model before the first batch: name and description.

    >>> from composer import State
    >>> state = State(model=torch.nn.Linear(1, 1))
    >>> Planner(state, Logger(state), logs_traces=False).handlers(Event.FIT_START)
    ()
    """

    def __init__(self, state: State, logger: Logger, *, logs_traces: bool) -> None:
        self.plans: dict[str, tuple[Handler, ...]] = {}
        self.passes: list[AlgorithmPass] = WatchedList[AlgorithmPass]([], self.forget)
        self.traces: Traces = {}
        self.changes: dict[tuple[int, Event], tuple[str, str]] = {}
        self._state = state
        self._logger = logger
        self._logs_traces = logs_traces
        self._keeps = False
        self.custom: dict[Event, bool] = {}
        self._hooks: list[Any] = []

    def handlers(self, event: Event) -> tuple[Handler, ...]:
        """Return the handlers of an event in the order in which they run, wrapped by those that ask for it.

        Args:
            event: The event.
        """
        found = self.plans.get(event)
        if found is None:
            found = self._plan(event)
            if self._keeps:
                if self.is_custom(event):
                    found = (*found, self._look_at_hooks)
                self.plans[event] = found
        return found

    def forget(self) -> None:
        """Plan each event anew."""
        # Not replaced by new ones, as the engine holds the plans too.
        self.plans.clear()
        self.custom.clear()
        if self._keeps:
            self._note_hooks()

    @contextlib.contextmanager
    def keeping(self) -> Generator[None]:
        """Keep the plans that are made inside."""
        if self._keeps:  # as an evaluation in a training
            yield
            return
        self.forget()
        self._keeps = True
        self._note_hooks()
        try:
            yield
        finally:
            self._keeps = False
            self.forget()

    def _plan(self, event: Event) -> tuple[Handler, ...]:
        handlers = self._collect(event)
        if handlers:
            # The first in the list is outermost.
            for callback in reversed(self._state.callbacks):
                if replaces(callback, Callback, "__wrap_handlers__"):
                    handlers = tuple(callback.__wrap_handlers__(event, handlers))
        return self._announced(event, handlers) if os.environ.get("ENGINE_DEBUG") else handlers

    def is_custom(self, event: Event) -> bool:
        """Return whether code from outside this package would be called when an event fires.

        Args:
            event: The event.
        """
        found = self.custom.get(event)
        if found is None:
            watching = [c for c in self._state.callbacks if listens(c, event) or replaces(c, Callback, "run_event")]
            found = any(_is_custom(one, event) for one in (*self._algorithms(event)[1], *watching))
            if self._keeps:
                self.custom[event] = found
        return found

    def _note_hooks(self) -> None:
        listeners = (*self._state.algorithms, *self._state.callbacks)
        kinds = {kind for one in listeners for kind in type(one).__mro__ if _package(kind) != "composer"}
        spaces: list[Any] = [getattr(one, "__dict__", {}) for one in (*listeners, *kinds - {object})]
        self._hooks = [spaces, sum(map(len, spaces)), [_HOOKS & space.keys() for space in spaces]]

    def _look_at_hooks(self, state: State, logger: Logger) -> None:
        """Plan anew if a hook was added to a listener, or taken away, by the code that has just run."""
        hooks = self._hooks
        if (now := sum(map(len, hooks[0]))) == hooks[1]:  # in the usual case no attribute has come or gone
            return
        spaces, _, names = hooks
        if names == [_HOOKS & space.keys() for space in spaces]:
            self._hooks[1] = now
        else:
            self.forget()

    def _algorithms(self, event: Event) -> tuple[list[Algorithm], list[Algorithm]]:
        """The algorithms that listen, and those that run, in their order: a pass may leave out some, and add others."""
        listening = [one for one in self._state.algorithms if listens(one, event) or not names_methods(one)]
        return listening, arrange(listening, event, self.passes)

    def _collect(self, event: Event) -> tuple[Handler, ...]:
        listening, ordered = self._algorithms(event)
        known = set(map(id, listening))
        algorithms = [
            self._algorithm_handler(one, event, place, asks=id(one) in known) for place, one in enumerate(ordered)
        ]
        if event in _SET_UP:
            algorithms = [self._noting_changes(handler, event) for handler in algorithms]
        watching = [c for c in self._state.callbacks if listens(c, event) or replaces(c, Callback, "run_event")]
        callbacks = [_callback_handler(c, event) for c in watching if not isinstance(c, LoggerDestination)]
        loggers = [self._destination_handler(c, event) for c in watching if isinstance(c, LoggerDestination)]
        if event is Event.INIT:
            return (*loggers, *callbacks, *algorithms)
        if event in _DELIVERY and self._logger.destinations:
            deliver = _DELIVERY[event]
            loggers.insert(0, lambda state, logger: deliver(logger))
        return (*algorithms, *callbacks, *loggers)

    def _algorithm_handler(self, algorithm: Algorithm, event: Event, place: int, *, asks: bool) -> Handler:
        kept = not self._logs_traces and self._logger.keeps_traces
        traced = self._logs_traces or kept or not self._keeps
        if names_methods(algorithm) and not traced:
            return _hook(algorithm, event)
        match = bind(algorithm, "match") if asks else _always  # what a pass adds runs, as the pass says
        apply = bind(algorithm, "apply")

        def run(state: State, logger: Logger) -> None:
            if match(event, state, logger):
                apply(event, state, logger)

        def recorded(state: State, logger: Logger) -> None:
            ran = bool(match(event, state, logger))
            code = apply(event, state, logger) if ran else None
            name = type(algorithm).__name__
            self.traces[f"{place}.{name}/{event.value}"] = Trace(name, event, code, place, ran)
            if self._logs_traces:
                logger.log_traces({f"algorithm_traces/{name}/{event.value}": int(ran)})
            elif kept and ran:  # one that declines would fill the file
                logger.log_traces({f"algorithm_traces/{name}/{event.value}": 1}, unasked=True)

        return owned(recorded if traced else run, algorithm)

    def _noting_changes(self, handler: Handler, event: Event) -> Handler:
        """Have a handler's changes of the model noted."""
        owner, changes = owner_of(handler), self.changes  # not the planner, which would keep itself alive

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

    def _announced(self, event: Event, handlers: tuple[Handler, ...]) -> tuple[Handler, ...]:
        """Log the event and each handler, before it runs, for ``ENGINE_DEBUG=1``."""

        def announce(handler: Handler | None) -> Handler:
            owner = owner_of(handler)
            kind = "algorithm" if any(owner is one for one in self._state.algorithms) else "callback"
            what = "Running event" if handler is None else f"Running {kind} {type(owner).__name__}"

            def run(state: State, logger: Logger) -> None:
                _log.debug("%s: %s", _place(state, event), what)
                if handler is not None:
                    handler(state, logger)

            return owned(run, owner)

        return tuple(announce(one) if one is None or owner_of(one) is not None else one for one in (None, *handlers))


def names_methods(algorithm: Algorithm) -> bool:
    """Return whether an algorithm is written by methods named after events rather than by match and apply.

    Args:
        algorithm: The algorithm.

    >>> names_methods(Algorithm())
    True
    """
    return not replaces(algorithm, Algorithm, "match") and not replaces(algorithm, Algorithm, "apply")


def _package(kind: type) -> str:
    return kind.__module__.partition(".")[0]


def _is_custom(listener: Any, event: Event) -> bool:
    """Whether what a listener does at an event is not, or not only, written in this package."""
    return event.value in getattr(listener, "__dict__", {}) or _package(type(listener)) != "composer"


def _hook(listener: Any, event: Event) -> Handler:
    """The method of a listener; of one of a user's, whatever it is when it is called."""
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


def _place(state: State, event: Event) -> str:
    now = [("ep", state.timestamp.epoch), ("ba", state.timestamp.batch)]
    if event.is_eval:
        now.append(("eval_ba", state.eval_timestamp.batch))
    if event.is_predict:
        now.append(("predict_ba", state.predict_timestamp.batch))
    return "".join(f"[{name}={int(time)}]" for name, time in now) + f"[event={event.name}]"
