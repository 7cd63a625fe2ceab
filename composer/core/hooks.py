"""One method for each event: what algorithms and callbacks have in common."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from composer.core.event import Event
from composer.core.traits import Traits

if TYPE_CHECKING:
    from composer.core.logger import Logger
    from composer.core.state import State

__all__ = ["Hooks", "listens", "replaces"]


class Hooks:
    """Methods named after the events; a subclass overrides those it wants to act at, and pays for no other.

    Every other name without underscores is free for attributes and methods of a subclass: what this library asks its
    own classes beyond the hooks has names with two underscores, such as ``__traits__``.

    Args:
        *args: Ignored, so that a subclass may pass on what it got.
        **kwargs: Ignored likewise.

    Raises:
        TypeError: A class of this library that takes no arguments is given some.

    >>> class Hello(Hooks):
    ...     def fit_start(self, state, logger):
    ...         print("hello")
    >>> Hello().__listens__(Event.FIT_START), Hello().__listens__(Event.FIT_END)
    (True, False)
    """

    __traits__: Traits = Traits()

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        kind = type(self)
        if (args or kwargs) and kind.__init__ is Hooks.__init__ and kind.__module__.startswith("composer."):
            given = ", ".join([*map(repr, args), *(f"{name}={value!r}" for name, value in kwargs.items())])
            raise TypeError(f"{kind.__name__} takes no arguments; got {given}.")

    def __listens__(self, event: Event) -> bool:
        """Tell whether this object has a method of its own for an event.

        Args:
            event: The event asked about.
        """
        name = event.value
        return name in self.__dict__ or getattr(type(self), name) is not getattr(Hooks, name)

    def init(self, state: State, logger: Logger) -> None:
        """The run is constructed; the place to change the model."""

    def before_load(self, state: State, logger: Logger) -> None:
        """A checkpoint is about to be loaded."""

    def after_load(self, state: State, logger: Logger) -> None:
        """The checkpoint, if any, is loaded."""

    def fit_start(self, state: State, logger: Logger) -> None:
        """Training begins."""

    def iteration_start(self, state: State, logger: Logger) -> None:
        """An iteration, a group of epochs or tokens, begins."""

    def epoch_start(self, state: State, logger: Logger) -> None:
        """An epoch begins."""

    def before_dataloader(self, state: State, logger: Logger) -> None:
        """The next batch is about to be fetched."""

    def after_dataloader(self, state: State, logger: Logger) -> None:
        """The batch is there, on the device."""

    def batch_start(self, state: State, logger: Logger) -> None:
        """A training step begins."""

    def before_train_batch(self, state: State, logger: Logger) -> None:
        """The closure of the optimizer begins."""

    def before_forward(self, state: State, logger: Logger) -> None:
        """A microbatch is about to enter the model."""

    def after_forward(self, state: State, logger: Logger) -> None:
        """``state.outputs`` is there."""

    def before_loss(self, state: State, logger: Logger) -> None:
        """The loss is about to be computed."""

    def after_loss(self, state: State, logger: Logger) -> None:
        """``state.loss`` is there."""

    def before_backward(self, state: State, logger: Logger) -> None:
        """The gradients are about to be computed."""

    def after_backward(self, state: State, logger: Logger) -> None:
        """The gradients of a microbatch are there."""

    def after_train_batch(self, state: State, logger: Logger) -> None:
        """The gradients are complete and unscaled; the place to clip them."""

    def batch_end(self, state: State, logger: Logger) -> None:
        """The step is done and counted."""

    def batch_checkpoint(self, state: State, logger: Logger) -> None:
        """The state is whole after a step; the place to save it."""

    def epoch_end(self, state: State, logger: Logger) -> None:
        """The epoch is done and counted."""

    def epoch_checkpoint(self, state: State, logger: Logger) -> None:
        """The state is whole after an epoch; the place to save it."""

    def iteration_end(self, state: State, logger: Logger) -> None:
        """The iteration is done and counted."""

    def iteration_checkpoint(self, state: State, logger: Logger) -> None:
        """The state is whole after an iteration; the place to save it."""

    def fit_end(self, state: State, logger: Logger) -> None:
        """Training is over, its last evaluation included."""

    def eval_before_all(self, state: State, logger: Logger) -> None:
        """The evaluators that are due begin."""

    def eval_start(self, state: State, logger: Logger) -> None:
        """An evaluator begins."""

    def eval_batch_start(self, state: State, logger: Logger) -> None:
        """An evaluation batch is there, on the device."""

    def eval_before_forward(self, state: State, logger: Logger) -> None:
        """The evaluation batch is about to enter the model."""

    def eval_after_forward(self, state: State, logger: Logger) -> None:
        """``state.outputs`` of the evaluation is there."""

    def eval_batch_end(self, state: State, logger: Logger) -> None:
        """The evaluation batch is done and counted."""

    def eval_end(self, state: State, logger: Logger) -> None:
        """The evaluator is done; its metrics are computed."""

    def eval_after_all(self, state: State, logger: Logger) -> None:
        """The evaluators that were due are done."""

    def eval_standalone_start(self, state: State, logger: Logger) -> None:
        """``Trainer.eval`` begins."""

    def eval_standalone_end(self, state: State, logger: Logger) -> None:
        """``Trainer.eval`` is done."""

    def predict_start(self, state: State, logger: Logger) -> None:
        """``Trainer.predict`` begins."""

    def predict_batch_start(self, state: State, logger: Logger) -> None:
        """A batch to predict is there, on the device."""

    def predict_before_forward(self, state: State, logger: Logger) -> None:
        """The batch is about to enter the model."""

    def predict_after_forward(self, state: State, logger: Logger) -> None:
        """``state.outputs`` of the prediction is there."""

    def predict_batch_end(self, state: State, logger: Logger) -> None:
        """The batch is predicted and counted."""

    def predict_end(self, state: State, logger: Logger) -> None:
        """``Trainer.predict`` is done."""


def listens(listener: Any, event: Event) -> bool:
    """Return whether an algorithm, callback or logger acts at an event; a test double is asked at every one.

    Args:
        listener: The object.
        event: The event.

    >>> listens(Hooks(), Event.INIT), listens("a double", Event.INIT)
    (False, True)
    """
    return listener.__listens__(event) if issubclass(type(listener), Hooks) else True


def replaces(listener: Any, base: type[Hooks], method: str) -> bool:
    """Return whether an object, by its class or by itself, has its own method in place of that of a base class.

    Args:
        listener: The object. What a test double has is its own, except for names with two underscores.
        base: The base class.
        method: Name of the method.

    >>> replaces(Hooks(), Hooks, "init")
    False
    """
    kind = type(listener)
    if not issubclass(kind, base):
        return not method.startswith("__")
    return method in vars(listener) or getattr(kind, method) is not getattr(base, method)
