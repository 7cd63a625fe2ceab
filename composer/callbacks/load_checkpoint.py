"""LoadCheckpoint: load a checkpoint, such as pretrained weights, at an event."""

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
    """Loads a checkpoint at an event, such as initial weights before another checkpoint is resumed.

    Args:
        load_path: The file: a path or URI.
        load_weights_only: Load only the weights and leave the rest of the state unchanged.
        strict_model_weights: Whether the parameter names must match exactly.
        ignore_keys: What to leave out: path patterns or a function.
        event: The event at which to load; this happens once per run.

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
        """Load the checkpoint at the event."""
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
