"""Hooks: the base class of algorithms and callbacks, with one hook method for each event."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from composer.core.event import Event
from composer.core.traits import Traits

if TYPE_CHECKING:
    from composer.core.logger import Logger
    from composer.core.state import State

__all__ = ["Hooks", "listens", "replaces"]


class Hooks:
    """Methods named after the events; a subclass overrides the hooks it needs, and others have no overhead.

    Subclasses may use every other public name for attributes and methods: apart from hooks, this library only uses
    dunder names, such as ``__traits__``.

    Args:
        *args: Ignored, so that a subclass may forward its arguments.
        **kwargs: Ignored likewise.

    Raises:
        TypeError: Arguments are passed to a class of this library that takes none.

    >>> class Hello(Hooks):
    ...     def fit_start(self, state, logger):
    ...         print("hello")
    >>> Hello().__listens__(Event.FIT_START), Hello().__listens__(Event.FIT_END)
    (True, False)
    """

    __traits__: Traits = Traits()

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        cls = type(self)
        if (args or kwargs) and cls.__init__ is Hooks.__init__ and cls.__module__.startswith("composer."):
            given = ", ".join([*map(repr, args), *(f"{name}={value!r}" for name, value in kwargs.items())])
            raise TypeError(f"{cls.__name__} takes no arguments; got {given}.")

    def __listens__(self, event: Event) -> bool:
        """Return whether this object overrides the hook of an event.

        Args:
            event: The event.
        """
        name = event.value
        return name in self.__dict__ or getattr(type(self), name) is not getattr(Hooks, name)

    def init(self, state: State, logger: Logger) -> None:
        """The run is constructed; change the model here."""

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
        """The batch is on the device."""

    def batch_start(self, state: State, logger: Logger) -> None:
        """A training step begins."""

    def before_train_batch(self, state: State, logger: Logger) -> None:
        """The closure of the optimizer begins."""

    def before_forward(self, state: State, logger: Logger) -> None:
        """The forward pass of a microbatch is about to begin."""

    def after_forward(self, state: State, logger: Logger) -> None:
        """``state.outputs`` is set."""

    def before_loss(self, state: State, logger: Logger) -> None:
        """The loss is about to be computed."""

    def after_loss(self, state: State, logger: Logger) -> None:
        """``state.loss`` is set."""

    def before_backward(self, state: State, logger: Logger) -> None:
        """The gradients are about to be computed."""

    def after_backward(self, state: State, logger: Logger) -> None:
        """The gradients of a microbatch are computed."""

    def after_train_batch(self, state: State, logger: Logger) -> None:
        """The gradients are complete and unscaled; clip them here."""

    def batch_end(self, state: State, logger: Logger) -> None:
        """The step is done and counted."""

    def batch_checkpoint(self, state: State, logger: Logger) -> None:
        """The state after a step is consistent; save checkpoints here."""

    def epoch_end(self, state: State, logger: Logger) -> None:
        """The epoch is done and counted."""

    def epoch_checkpoint(self, state: State, logger: Logger) -> None:
        """The state after an epoch is consistent; save checkpoints here."""

    def iteration_end(self, state: State, logger: Logger) -> None:
        """The iteration is done and counted."""

    def iteration_checkpoint(self, state: State, logger: Logger) -> None:
        """The state after an iteration is consistent; save checkpoints here."""

    def fit_end(self, state: State, logger: Logger) -> None:
        """Training is done, including its last evaluation."""

    def eval_before_all(self, state: State, logger: Logger) -> None:
        """The evaluators that are due begin."""

    def eval_start(self, state: State, logger: Logger) -> None:
        """An evaluator begins."""

    def eval_batch_start(self, state: State, logger: Logger) -> None:
        """An evaluation batch is on the device."""

    def eval_before_forward(self, state: State, logger: Logger) -> None:
        """The forward pass of the evaluation batch is about to begin."""

    def eval_after_forward(self, state: State, logger: Logger) -> None:
        """``state.outputs`` of the evaluation is set."""

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
        """A prediction batch is on the device."""

    def predict_before_forward(self, state: State, logger: Logger) -> None:
        """The forward pass of the prediction batch is about to begin."""

    def predict_after_forward(self, state: State, logger: Logger) -> None:
        """``state.outputs`` of the prediction is set."""

    def predict_batch_end(self, state: State, logger: Logger) -> None:
        """The batch is predicted and counted."""

    def predict_end(self, state: State, logger: Logger) -> None:
        """``Trainer.predict`` is done."""


def listens(listener: Any, event: Event) -> bool:
    """Return whether an algorithm, callback or logger listens to an event; a test double listens to all events.

    Args:
        listener: The object.
        event: The event.

    >>> listens(Hooks(), Event.INIT), listens("a double", Event.INIT)
    (False, True)
    """
    return listener.__listens__(event) if issubclass(type(listener), Hooks) else True


def replaces(listener: Any, base: type[Hooks], method: str) -> bool:
    """Return whether an object, or its class, overrides a method of a base class.

    Args:
        listener: The object. A test double overrides all methods, except for dunder names.
        base: The base class.
        method: Name of the method.

    >>> replaces(Hooks(), Hooks, "init")
    False
    """
    cls = type(listener)
    if not issubclass(cls, base):
        return not method.startswith("__")
    return method in vars(listener) or getattr(cls, method) is not getattr(base, method)
