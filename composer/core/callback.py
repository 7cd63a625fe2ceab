"""Base class of what watches a run."""

from __future__ import annotations

from typing import TYPE_CHECKING

from composer.core.hooks import Hooks
from composer.core.serial import Serializable

if TYPE_CHECKING:
    from composer.core.event import Event
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

    def close(self, state: State, logger: Logger) -> None:
        """Finish; called once when the run is closed, also after an error.

        Args:
            state: The state of the run.
            logger: Still takes metrics.
        """

    def post_close(self) -> None:
        """Release what is held; called after every callback's :meth:`close`."""
