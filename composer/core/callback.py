"""Callback, the base class of extensions that measure, log, save or stop a run at events of the training loop."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from composer.core.hooks import Hooks
from composer.core.serializable import Serializable

if TYPE_CHECKING:
    from composer.core.event import Event
    from composer.core.handler_owner import Handler
    from composer.core.logger import Logger
    from composer.core.state import State

__all__ = ["Callback"]


class Callback(Hooks, Serializable):
    """Acts at events without changing how the model is trained: measures, logs, saves or stops.

    Override methods named after events, or :meth:`run_event`, which receives all events.

    >>> class PrintEpoch(Callback):
    ...     def epoch_start(self, state, logger):
    ...         print("Epoch", state.timestamp.epoch.value)
    >>> from composer import Engine, State
    >>> engine = Engine(State(model=torch.nn.Linear(1, 1)), callbacks=[PrintEpoch()])
    >>> _ = engine.run_event("epoch_start")
    Epoch 0
    """

    #: Whether it writes files or sends messages. Commands that only try a run, such as ``composer verify``, leave such
    #: callbacks out.
    writes_output: ClassVar[bool] = False

    def run_event(self, event: Event, state: State, logger: Logger) -> None:
        """Handle any event by calling the method named after it.

        Args:
            event: The event that fires.
            state: The state of the run.
            logger: Receives metrics.
        """
        getattr(self, event.value)(state, logger)

    def __wrap_handlers__(self, event: Event, handlers: tuple[Handler, ...]) -> tuple[Handler, ...]:
        """Return the functions that the engine calls at an event instead of ``handlers``: to time, trace or guard them.

        Called once for each event with listeners, when it first fires after the lists of algorithms and callbacks
        changed; not called in the steps that follow, so that a run without wrappers has no overhead. If several
        callbacks wrap an event, the first in the list is outermost.

        Args:
            event: The event.
            handlers: The functions that would be called, in order, each as ``handler(state, logger)``, including the
                handlers of this callback. :func:`.owner_of` returns the algorithm, callback or logger of a handler;
                mark a wrapper with the same owner using :func:`.owned`.

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
        """Path or URI that this callback writes to, shown in the summary of a run; None if it writes nothing."""
        return None

    @property
    def __remote_file_name__(self) -> str | None:
        """Where this callback uploads its files; for a URI the trainer adds an uploading logger. None for no upload."""
        return None

    def close(self, state: State, logger: Logger) -> None:
        """Finish; called once when the run is closed, also after an error.

        Args:
            state: The state of the run.
            logger: Still receives metrics.
        """

    def post_close(self) -> None:
        """Release resources; called after :meth:`close` of every callback."""
