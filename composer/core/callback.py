"""Base class of what watches a run."""

from __future__ import annotations

from typing import TYPE_CHECKING

from composer.core.hooks import Hooks
from composer.core.serializable import Serializable

if TYPE_CHECKING:
    from composer.core.event import Event
    from composer.core.handler_owner import Handler
    from composer.core.logger import Logger
    from composer.core.state import State

__all__ = ["Callback"]


class Callback(Hooks, Serializable):
    """Acts at events without changing how the model is trained: measures, logs, saves, stops.

    Override methods named after events, or :meth:`run_event`, which sees all of them.

    >>> class PrintEpoch(Callback):
    ...     def epoch_start(self, state, logger):
    ...         print("Epoch", state.timestamp.epoch.value)
    >>> from composer import Engine, State
    >>> engine = Engine(State(model=torch.nn.Linear(1, 1)), callbacks=[PrintEpoch()])
    >>> _ = engine.run_event("epoch_start")
    Epoch 0
    """

    def run_event(self, event: Event, state: State, logger: Logger) -> None:
        """Handle any event; calls the method named after it.

        Args:
            event: The event that fires.
            state: The state of the run.
            logger: Takes metrics.
        """
        getattr(self, event.value)(state, logger)

    def __wrap_handlers__(self, event: Event, handlers: tuple[Handler, ...]) -> tuple[Handler, ...]:
        """Return what the engine is to call at an event in place of what it would call: to time, trace or guard it.

        Asked once for each event that somebody listens to, when it first fires after a change of the lists of
        algorithms and callbacks; not asked again in the steps that follow, so that a run without wrappers pays
        nothing. Of several callbacks that wrap, the first in the list is outermost.

        Args:
            event: The event.
            handlers: What would be called, in order, each as ``handler(state, logger)``; those of this callback too.
                Whose a handler is, :func:`.owner_of` tells; a function that stands in for it takes over the owner by
                :func:`.owned`.

        >>> from composer import Engine, State
        >>> from composer.core.handler_owner import owned, owner_of
        >>> class Trace(Callback):
        ...     def __wrap_handlers__(self, event, handlers):
        ...         return tuple(map(self.traced, handlers))
        ...
        ...     def traced(self, handler):
        ...         def call(state, logger):
        ...             print(type(owner_of(handler)).__name__, "begins")
        ...             handler(state, logger)
        ...
        ...         return owned(call, owner_of(handler))
        >>> class Other(Callback):
        ...     def batch_end(self, state, logger):
        ...         print("at work")
        >>> engine = Engine(State(model=torch.nn.Linear(1, 1)), callbacks=[Trace(), Other()])
        >>> _ = engine.run_event("batch_end")
        Other begins
        at work
        """
        return handlers

    @property
    def __location__(self) -> str | None:
        """Path or URI of what this writes, shown in the summary of a run; None for nothing."""
        return None

    @property
    def __remote_file_name__(self) -> str | None:
        """Where this uploads what it writes to; for a URI the trainer adds a logger that uploads. None for nowhere."""
        return None

    def close(self, state: State, logger: Logger) -> None:
        """Finish; called once when the run is closed, also after an error.

        Args:
            state: The state of the run.
            logger: Still takes metrics.
        """

    def post_close(self) -> None:
        """Release what is held; called after every callback's :meth:`close`."""
