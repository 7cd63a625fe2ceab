"""The callback that tells the clock which part of a step runs: stages of the loop, and each handler by name."""

from __future__ import annotations

from typing import Any

from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from composer.core.callback import Callback
from composer.core.event import Event
from composer.core.handler_owner import Handler, owned, owner_of
from composer.core.logger import Logger
from composer.core.state import State
from composer.diagnosis.step_clock import StepClock

__all__ = ["Finished", "StepTimer"]

# The part that begins after an event's handlers.
_BEGINS = {
    Event.BEFORE_DATALOADER: "data",
    Event.AFTER_DATALOADER: "rest",
    Event.BEFORE_FORWARD: "forward",
    Event.AFTER_FORWARD: "rest",
    Event.BEFORE_LOSS: "loss",
    Event.AFTER_LOSS: "rest",
    Event.BEFORE_BACKWARD: "backward",
    Event.AFTER_BACKWARD: "rest",
    Event.EVAL_BEFORE_ALL: "evaluation",
    Event.EVAL_AFTER_ALL: "rest",
}


class Finished(Exception):  # noqa: N818 - not an error
    """Raised to end the training after the last step that is wanted.

    >>> raise Finished
    Traceback (most recent call last):
    composer.diagnosis.step_timer.Finished
    """


class StepTimer(Callback):
    """Splits the time of each step among the stages of the loop and the handlers of the engine.

    It must be the first callback of the trainer: its wrappers are then outside of those of all others.

    Args:
        clock: The clock.
        steps: Number of steps after which to end the training.
        warmup: Number of steps before, which are not kept.

    >>> StepTimer(StepClock(), steps=20).warmup
    3
    """

    def __init__(self, clock: StepClock, steps: int, warmup: int = 3) -> None:
        self.clock, self.steps, self.warmup = clock, steps, warmup
        self._hooks: list[Any] = []
        self._begun = False

    def __wrap_handlers__(self, event: Event, handlers: tuple[Handler, ...]) -> tuple[Handler, ...]:
        timed = [self._timed(handler) for handler in handlers if owner_of(handler) is not self]
        part = _BEGINS.get(event)
        if part is not None:
            # What the loop does until the first handler belongs to the stage that the event ends.
            timed = [owned(self._rest, self), *timed, owned(lambda state, logger: self.clock.switch(part), self)]
        if event is Event.BATCH_END:
            timed.append(owned(self._end_step, self))
        return tuple(timed)
