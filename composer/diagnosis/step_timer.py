"""The callback that reports to the clock which part of a step runs: stages of the loop, and each handler by name."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from composer.callbacks import CheckpointSaver
from composer.core.algorithm import Algorithm
from composer.core.callback import Callback
from composer.core.event import Event
from composer.core.handler_owner import Handler, owned, owner_of
from composer.core.logger import Logger, LoggerDestination
from composer.core.state import State
from composer.diagnosis.communication import CommunicationTimer
from composer.diagnosis.step_clock import StepClock

if TYPE_CHECKING:
    from composer.trainer import Trainer

__all__ = ["StepTimer", "part_of"]

# The part that begins after the handlers of an event, and ends before those of another.
_BEGINS = {
    Event.BEFORE_FORWARD: "forward",
    Event.BEFORE_LOSS: "loss",
    Event.EVAL_BEFORE_ALL: "evaluation",
    Event.EVAL_STANDALONE_START: "evaluation",
}
_ENDS = frozenset({Event.AFTER_FORWARD, Event.AFTER_LOSS, Event.EVAL_AFTER_ALL, Event.EVAL_STANDALONE_END})
# A compiled model computes the loss in the graph of the forward pass unless a callback listens to these.
_WITHIN_GRAPH = frozenset({Event.AFTER_FORWARD, Event.BEFORE_LOSS, Event.AFTER_LOSS, Event.BEFORE_BACKWARD})


def part_of(owner: object) -> str:
    """Return the part of a step that the handlers of an object are.

    Args:
        owner: An algorithm, callback or logger; None for the logger itself, which passes metrics on.

    >>> from composer.callbacks import LRMonitor
    >>> part_of(LRMonitor()), part_of(None)
    ('callback LRMonitor', 'logging')
    """
    name = type(owner).__name__
    if owner is None:
        return "logging"
    if isinstance(owner, CheckpointSaver):
        return "saving"
    if isinstance(owner, LoggerDestination):
        return f"logger {name}"
    return f"method {name}" if isinstance(owner, Algorithm) else f"callback {name}"


class StepTimer(Callback):
    """Splits the time of each step among the stages of the loop and the handlers of the engine.

    A step ends where the next batch is requested, so that its evaluation, checkpoint and end of the epoch belong to it.
    The timer must be the first callback of the trainer: its wrappers are then outside of those of all others.

    Args:
        clock: The clock.
        ended: Called after each step, with the clock stopped; raises :class:`.Finished` after the last one.
        fused: Whether the model is compiled, so that the forward pass and the loss are one part.

    Attributes:
        forwards: Number of forward passes of training so far.

    >>> StepTimer(StepClock(), ended=lambda: None).forwards
    0
    """

    def __init__(self, clock: StepClock, ended: Callable[[], None], fused: bool = False) -> None:
        self._clock, self._ended, self._fused = clock, ended, fused
        self._watched = contextlib.ExitStack()
        self._state: State | None = None
        self._communication = CommunicationTimer(clock)
        self._has_batch = False
        self._evaluates = False
        self.forwards = 0

    def run_event(self, event: Event, state: State, logger: Logger) -> None:
        """Do nothing: what happens at an event is added to its handlers, so that it comes first and last."""

    def __listens__(self, event: Event) -> bool:
        return not (self._fused and event in _WITHIN_GRAPH)

    def __wrap_handlers__(self, event: Event, handlers: tuple[Handler, ...]) -> tuple[Handler, ...]:
        timed = [self._timed(handler) for handler in handlers if owner_of(handler) is not self]
        if self._fused and event in _WITHIN_GRAPH:
            return tuple(timed)
        actions = (self._before(event), self._after(event))
        before, after = ([] if action is None else [owned(_handler(action), self)] for action in actions)
        return (*before, *timed, *after)

    def watch(self, trainer: Trainer) -> None:
        """Also time what has no events: the transfer, the backward pass, metrics, loggers, optimizers and schedules.

        Args:
            trainer: The trainer, before ``fit``.
        """
        run, state = trainer._run, trainer.state  # pyright: ignore[reportPrivateUsage]
        self._state = state
        self._communication.watch(trainer)
        self.time_method(run.strategy, "backward", "backward")
        self.time_method(state.device, "batch_to_device", "transfer")
        self.time_method(state.model, "update_metric", "metrics")
        for destination in trainer.logger.destinations:
            for name in ("__receive__", "log_images", "log_table", "log_traces"):
                self.time_method(destination, name, part_of(destination))
        for optimizer in state.optimizers:
            # With zeroing gradients, and what PyTorch does around the hooks below.
            for name in ("step", "zero_grad"):
                self.time_method(optimizer, name, "optimizer")
        for hook in (
            register_optimizer_step_pre_hook(lambda *_: self._enter("optimizer")),
            register_optimizer_step_post_hook(lambda *_: self._leave()),
        ):
            self._watched.callback(hook.remove)

    def close(self, state: State, logger: Logger) -> None:
        """Remove the hooks, and time no schedules anymore."""
        self._watched.close()
        self._communication.close()

    def _before(self, event: Event) -> Callable[[], None] | None:
        """Return what to do before the handlers of an event."""
        if event is Event.BEFORE_DATALOADER:
            return self._end_step
        if event is Event.AFTER_DATALOADER:
            return self._loaded
        if event is Event.EPOCH_END:
            return self._clock.leave_all
        if event in (Event.EVAL_AFTER_ALL, Event.EVAL_STANDALONE_END):
            return self._end_evaluation
        return self._leave if event in _ENDS else None

    def _after(self, event: Event) -> Callable[[], None] | None:
        """Return what to do after the handlers of an event."""
        if event is Event.FIT_START:
            return self._time_schedules
        if event in (Event.EVAL_BEFORE_ALL, Event.EVAL_STANDALONE_START):
            return self._begin_evaluation
        if event is Event.BEFORE_FORWARD:
            return self._begin_forward
        if event in (Event.EPOCH_START, Event.BEFORE_DATALOADER):  # workers start with the epoch
            return functools.partial(self._clock.enter, "data")
        part = _BEGINS.get(event)
        return None if part is None else functools.partial(self._clock.enter, part)

    def _end_step(self) -> None:
        self._clock.leave_all()
        if self._has_batch:
            self._has_batch = False
            self._clock.end_step()
            self._ended()
            self._clock.restart()

    def _loaded(self) -> None:
        self._clock.leave_all()
        self._has_batch = True

    def _begin_forward(self) -> None:
        self.forwards += 1
        self._clock.enter("forward")

    def _begin_evaluation(self) -> None:
        self._evaluates = True
        self._clock.enter("evaluation")

    def _end_evaluation(self) -> None:
        self._evaluates = False
        self._clock.leave()

    def _enter(self, part: str) -> None:
        self._clock.enter(part)

    def _leave(self) -> None:
        self._clock.leave()

    def time_method(self, owner: Any, name: str, part: str) -> None:
        """Replace a method of an object by one that is timed; nothing if it has none of that name.

        Args:
            owner: The object.
            name: Name of the method.
            part: The part of a step that it is.
        """
        method = getattr(owner, name, None)
        if method is not None:
            object.__setattr__(owner, name, self._within(method, part))

    def _time_schedules(self) -> None:
        """Time the schedules, once training has bound them.

        In their classes: the state of a torch schedule, which checkpoints contain, is all that is set on it.
        """
        for kind in {type(one) for one in self._state.schedulers} if self._state is not None else ():
            for name in ("step", "refresh"):
                method = getattr(kind, name, None)
                if method is None:
                    continue
                if name in vars(kind):
                    self._watched.callback(setattr, kind, name, method)
                else:
                    self._watched.callback(delattr, kind, name)
                setattr(kind, name, self._within(method, "schedules"))

    def _within(self, method: Callable[..., Any], part: str) -> Callable[..., Any]:
        """Return a function whose time is that of a part of a step."""
        clock = self._clock

        @functools.wraps(method)
        def timed(*positional: Any, **named: Any) -> Any:
            if self._evaluates and not part.startswith("logger"):
                return method(*positional, **named)
            if self._fused and part == "backward":
                clock.leave()  # the forward pass
            clock.enter(part)
            try:
                return method(*positional, **named)
            finally:
                if part == "backward":
                    self._communication.end_backward()
                clock.leave()

        return timed

    def _timed(self, handler: Handler) -> Handler:
        owner, clock = owner_of(handler), self._clock
        part = part_of(owner)

        def timed(state: State, logger: Logger) -> object:
            clock.enter(part)
            try:
                return handler(state, logger)
            finally:
                clock.leave()

        return owned(timed, owner)


def _handler(action: Callable[[], None]) -> Handler:
    def handle(state: State, logger: Logger) -> None:
        action()

    return handle
