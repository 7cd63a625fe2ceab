"""Loading a checkpoint at an event."""

from __future__ import annotations

from typing import TYPE_CHECKING

from composer.checkpoint.filters import IgnoreKeys
from composer.checkpoint.load import load_checkpoint
from composer.core.callback import Callback
from composer.core.event import Event

if TYPE_CHECKING:
    from composer.core.logger import Logger
    from composer.core.state import State

__all__ = ["LoadCheckpoint"]


class LoadCheckpoint(Callback):
    """Loads a checkpoint at an event, such as weights to begin from before another checkpoint is resumed.

    Args:
        load_path: The file, a path or URI.
        load_weights_only: Whether to leave all but the weights as they are.
        strict_model_weights: Whether the names of the weights must be the same.
        ignore_keys: What to leave out, patterns of paths or a function.
        event: When; it happens once in a run.

    >>> LoadCheckpoint("weights.pt", load_weights_only=True).event
    <Event.BEFORE_LOAD: 'before_load'>
    """

    def __init__(
        self,
        load_path: str,
        load_weights_only: bool = False,
        strict_model_weights: bool = True,
        ignore_keys: IgnoreKeys = None,
        event: str | Event = Event.BEFORE_LOAD,
    ) -> None:
        self.load_path = load_path
        self.load_weights_only = load_weights_only
        self.strict_model_weights = strict_model_weights
        self.ignore_keys = ignore_keys
        self.event = Event(event)
        self._loaded = False

    def run_event(self, event: Event, state: State, logger: Logger) -> None:
        """Load at the event."""
        if event is Event.INIT:
            self._loaded = False
        if event is self.event and not self._loaded:
            self._loaded = True
            load_checkpoint(
                self.load_path,
                state,
                logger,
                load_weights_only=self.load_weights_only,
                strict_model_weights=self.strict_model_weights,
                ignore_keys=self.ignore_keys,
            )
