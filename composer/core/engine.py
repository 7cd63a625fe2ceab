"""The engine: calls the hooks of algorithms, callbacks and loggers at each event of the training loop, in order."""

from __future__ import annotations

import contextlib
import logging
import weakref
from collections.abc import Generator, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from composer._batch_keys import is_about_key
from composer._numbers import as_integer
from composer.core.algorithm import Algorithm
from composer.core.algorithm_order import AlgorithmPass, warn_of_conflicts
from composer.core.algorithm_trace import Trace, Traces
from composer.core.callback import Callback
from composer.core.event import Event
from composer.core.event_plan import Planner, uses_event_methods
from composer.core.handler_owner import Handler, owner_of
from composer.core.hooks import Hooks, listens, replaces
from composer.core.listener_check import can_listen, check_listener
from composer.core.logger import Logger, LoggerDestination
from composer.core.match_and_apply import bind
from composer.trees import ensure_tuple

if TYPE_CHECKING:
    from composer.core.state import State

__all__ = ["Engine", "Trace", "Traces"]

_log = logging.getLogger(__name__)

# Callbacks by id, as they need not be hashable, and the engine that opened each by INIT.
_open: dict[int, tuple[weakref.ref[Callback], weakref.ref[Engine]]] = {}


class Engine:
    """Fires events: calls the hooks that listen to an event, in a fixed order.

    Algorithms run first (see :func:`.arrange`), then callbacks, then loggers; at ``INIT`` loggers, callbacks,
    algorithms. In a loop, the engine plans the calls of an event once, when it first fires, and again when the lists
    in the state change. An event without listeners costs one dictionary lookup.

    Args:
        state: The state that handlers edit.
        logger: Receives metrics; built from the loggers among the callbacks by default.
        algorithm_passes: Functions that reorder the algorithms at an event, applied after the order by slot: one
            function ``(algorithms, event) -> algorithms`` or several, each alone or with its index as
            ``(function, index)``.
        algorithms: Replaces ``state.algorithms`` if given.
        callbacks: Replaces ``state.callbacks`` if given; loggers too.
        record_traces: Whether :meth:`run_event` returns a record of each algorithm that it considered.

    Raises:
        TypeError: An algorithm, callback or pass has the wrong type, an algorithm can never run, or a hook has the
            wrong parameters. Methods that look like hooks but are never called raise a warning.

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
        self._checked: tuple[Algorithm, ...] = ()
        self._check_listeners()
        if logger is None:
            logger = Logger(state, [c for c in state.callbacks if isinstance(c, LoggerDestination)])
        self.logger = logger
        self._planner = Planner(state, logger, logs_traces=record_traces)
        self._plans = self._planner.plans  # so that an event costs one lookup
        for algorithm_pass, index in _passes(algorithm_passes):
            self.register_pass(algorithm_pass, index)
        # Weak, so that the state does not keep its engine, and with it the open callbacks, alive.
        weak_method = weakref.WeakMethod(self._listeners_changed)
        state.on_listeners_changed(lambda: (method := weak_method()) and method())
        self._finalizer = weakref.finalize(self, _close, state, self.logger)

    def run_event(self, event: Event | str) -> Traces:
        """Call everything that listens to an event.

        Args:
            event: The event or its name.

        Returns:
            A record for each algorithm considered; in a loop only if ``record_traces`` is set, else an empty dict.

        Raises:
            ValueError: No event has that name.
            RuntimeError: The engine is closed.
            Exception: Any exception of a handler, with a note that names its algorithm, callback or logger.
        """
        handlers = self._plans.get(event)
        if handlers is None:
            event = Event(event)
            handlers = self._handlers(event)
        if not handlers:
            return {}
        return self._call(handlers, event)

    def run_marker_only_event(self, event: Event | str) -> None:
        """Mark an event that no algorithm or callback handles; kept for loops written for older versions.

        Args:
            event: The event or its name.

        Raises:
            ValueError: No event has that name.
            RuntimeError: The engine is closed.
        """
        self._raise_if_closed()
        Event(event)

    def listens(self, event: Event) -> bool:
        """Return whether any handler listens to an event.

        Args:
            event: The event.
        """
        handlers = self._plans.get(event)
        return bool(self._handlers(event) if handlers is None else handlers)

    def custom_listens(self, event: Event) -> bool:
        """Return whether code from outside this package would be called when an event fires.

        Args:
            event: The event.
        """
        found = self._planner.custom.get(event)
        return self._planner.is_custom(event) if found is None else found

    def may_edit(self, event: Event) -> bool:
        """Return whether anything that listens to an event may edit the state: any but callbacks that only watch.

        Args:
            event: The event.
        """
        if not self._plans.get(event, True):
            return False  # the usual case: nothing listens
        found = self._planner.editing.get(event)
        return self._planner.may_edit(event) if found is None else found

    @contextlib.contextmanager
    def looping(self) -> Generator[None]:
        """Cache plans inside this context, for a loop that fires the same events repeatedly.

        Outside, each event inspects the listeners again, so that changed methods take effect. Inside, plans are
        dropped after an event at which custom code added a hook to a listener or removed one.
        """
        with self._planner.caching():
            yield

    def register_pass(self, algorithm_pass: AlgorithmPass, index: int = -1) -> None:
        """Add a function that reorders the algorithms.

        Args:
            algorithm_pass: Receives the listening algorithms and the event, and returns the algorithms reordered.
            index: Position among the passes; -1 is the end.

        Raises:
            TypeError: It is not callable.
        """
        position = as_integer(index)
        if not callable(algorithm_pass) or position is None:
            raise _bad_pass(algorithm_pass if index == -1 else (algorithm_pass, index))
        index = position
        self.algorithm_passes.insert(len(self.algorithm_passes) if index == -1 else index, algorithm_pass)

    @property
    def algorithm_passes(self) -> list[AlgorithmPass]:
        """The functions that reorder the algorithms, in the order in which they are applied, after the order by slot.

        Changes to the list take effect.
        """
        return self._planner.passes

    @algorithm_passes.setter
    def algorithm_passes(self, passes: Sequence[AlgorithmPass]) -> None:
        self.algorithm_passes[:] = passes

    @property
    def model_changes(self) -> tuple[tuple[str, str], ...]:
        """Changes that algorithms made to the model before the first batch, as pairs (algorithm name, description)."""
        return tuple(self._planner.changes.values())

    def close(self) -> None:
        """Close every callback, loggers last, even if one of them fails; further calls do nothing.

        Also runs when the engine is garbage-collected or the interpreter exits.
        """
        self._finalizer()
        self._planner.clear()

    @staticmethod
    def _close(state: State, logger: Logger) -> None:
        """Close the callbacks of a state; for code that closes them without an engine."""
        _close(state, logger)

    @property
    def closed(self) -> bool:
        """Whether :meth:`close` has run."""
        return not self._finalizer.alive

    def _listeners_changed(self) -> None:
        """Drop all plans and check the listeners."""
        self._planner.clear()
        self._check_listeners()

    def _check_listeners(self) -> None:
        for callback in self.state.callbacks:
            _check_type("callbacks", callback, Callback)
            check_listener(callback)
        algorithms = tuple(self.state.algorithms)
        if [*map(id, algorithms)] != [*map(id, self._checked)]:
            for algorithm in algorithms:
                _check(algorithm)
            warn_of_conflicts(algorithms)
            self._checked = algorithms

    def _raise_if_closed(self) -> None:
        if self.closed:
            raise RuntimeError("The engine is closed, and its callbacks with it; make a new Engine or Trainer.")

    def _handlers(self, event: Event) -> tuple[Handler, ...]:
        self._raise_if_closed()
        if event is Event.INIT:
            _raise_if_open(self.state.callbacks, self)
        return self._planner.handlers(event)

    def _call(self, handlers: tuple[Handler, ...], event: Event | str) -> Traces:
        state, logger = self.state, self.logger
        # A handler may fire events itself; their records are separate.
        planner = self._planner
        outer, planner.traces = planner.traces, {}
        handler = None
        try:
            for handler in handlers:
                handler(state, logger)
            return planner.traces
        except BaseException as error:
            owner = owner_of(handler)
            if owner is not None:
                error.add_note(
                    f"Raised by {type(owner).__name__} at the event {str(event)!r}.{_key_hint(owner, error)}"
                )
            raise
        finally:
            planner.traces = outer


def _key_hint(owner: object, error: BaseException) -> str:
    """Return the arguments that tell an algorithm or callback where to find in a batch what it did not find."""
    names = [f"{name}={getattr(owner, name)!r}" for name in ("input_key", "target_key") if hasattr(owner, name)]
    if not names or not is_about_key(error):
        return ""
    return f" Its keys of the batch are {', '.join(names)}: pass those of your batches."


def _check_type(argument: str, listener: Any, cls: type[Hooks]) -> None:
    if not can_listen(listener, cls):
        remedy = f" Make an object of it: {listener.__name__}(...)." if isinstance(listener, type) else ""
        raise TypeError(f"{argument} must be {cls.__name__} objects; got {listener!r}.{remedy}")


def _check(algorithm: Algorithm) -> None:
    """Raise if a registered algorithm can never run."""
    _check_type("algorithms", algorithm, Algorithm)
    check_listener(algorithm)
    if uses_event_methods(algorithm):
        return
    bind(algorithm, "match")
    bind(algorithm, "apply")
    if not any(listens(algorithm, event) for event in Event):
        for missing, there in (("apply", "match"), ("match", "apply")):
            if not replaces(algorithm, Algorithm, missing):
                raise TypeError(
                    f"{type(algorithm).__name__} defines {there} but not {missing}, so it would never act. Define "
                    f"both, or write methods named after the events instead."
                )


def _passes(given: Any) -> Iterator[tuple[AlgorithmPass, int]]:
    """Yield the algorithm passes, in any accepted form, each with its index."""
    one_with_index = isinstance(given, (tuple, list)) and len(given) == 2 and isinstance(given[1], int)
    entries: tuple[Any, ...] = (tuple(given),) if one_with_index else ensure_tuple(given)
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


def _raise_if_open(callbacks: Sequence[Callback], engine: Engine) -> None:
    """Raise if a callback is open in another engine; otherwise mark all of them as opened by this engine."""
    for callback in callbacks:
        known, opener = _open.get(id(callback), (None, None))
        opened_by = opener() if opener is not None and known is not None and known() is callback else None
        if opened_by is not None and opened_by is not engine and not opened_by.closed:
            raise RuntimeError(
                f"Cannot create a new trainer with an open callback or logger from a previous trainer: "
                f"{type(callback).__name__} still belongs to it. Call close() of that trainer first, or use it as a "
                f"context manager."
            )
    for key in [key for key, (known, _) in _open.items() if known() is None]:
        del _open[key]
    _open.update({id(callback): (weakref.ref(callback), weakref.ref(engine)) for callback in callbacks})


def _close(state: State, logger: Logger) -> None:
    """Close all callbacks even if some fail; callbacks may still log while they close, since loggers close last."""
    _log.debug("Closing the engine.")
    logger.deferred = False
    try:
        logger.flush()
    except Exception:
        _log.exception("The last metrics could not be delivered.")
    closed: list[Callback] = []
    for callback in sorted(state.callbacks, key=lambda callback: isinstance(callback, LoggerDestination)):
        try:
            _log.debug("Closing callback %s", type(callback).__name__)
            callback.close(state, logger)
            closed.append(callback)
        except Exception:
            _log.exception("%s.close failed.", type(callback).__name__)
    for callback in closed:
        try:
            _log.debug("Post-closing callback %s", type(callback).__name__)
            callback.post_close()
        except Exception:
            _log.exception("%s.post_close failed.", type(callback).__name__)
    _log.debug("Engine closed.")
