"""Overrides: change the trainers of a program from outside, without changes to the program.

Commands such as ``composer verify`` run a user's script with other arguments of :class:`.Trainer`, or for a few steps
only. This is the only place where they take effect: while overrides are active, calls of ``Trainer(...)``,
``Trainer.fit`` and methods of the trainer that write files are passed to them.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
from collections.abc import Callable, Generator
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar, cast

if TYPE_CHECKING:
    from composer.trainer.trainer import Trainer

__all__ = ["TrainerOverrides", "override_trainers", "run_overrides", "saves"]

P = ParamSpec("P")
T = TypeVar("T")

_active: TrainerOverrides | None = None
# Trainers whose method an override calls.
_overridden: list[Trainer] = []


class TrainerOverrides:
    """Called instead of ``Trainer.__init__``, ``Trainer.fit`` and the methods that save; a subclass changes them.

    What a method calls in turn on the same trainer is not overridden again; other trainers are.

    >>> from composer import Trainer
    >>> from composer.models import ComposerClassifier
    >>> class Shorter(TrainerOverrides):
    ...     def init(self, trainer, init, arguments):
    ...         init(**{**arguments, "max_duration": "1ep"})
    >>> model = ComposerClassifier(torch.nn.Linear(2, 2), num_classes=2)
    >>> with override_trainers(Shorter()):
    ...     Trainer(model=model, max_duration="90ep").state.max_duration
    Time(1, TimeUnit.EPOCH)
    """

    def init(self, trainer: Trainer, init: Callable[..., None], arguments: dict[str, Any]) -> None:
        """Initialize a trainer.

        Args:
            trainer: The trainer, not yet initialized.
            init: Initializes it with the arguments that it is called with.
            arguments: The arguments that the program passes.
        """
        init(**arguments)

    def fit(self, trainer: Trainer, fit: Callable[..., None], arguments: dict[str, Any]) -> None:
        """Train.

        Args:
            trainer: The trainer.
            fit: Its ``fit``.
            arguments: The arguments that the program passes.
        """
        fit(**arguments)

    def save(self, trainer: Trainer, save: Callable[..., Any], arguments: dict[str, Any]) -> Any:
        """Save a checkpoint or export the model: when the program, or a callback, calls the trainer's method for it.

        Args:
            trainer: The trainer.
            save: The trainer's method.
            arguments: The arguments that the program passes, with the defaults of others: ``name`` of
                ``save_checkpoint``, ``save_path`` of ``export_for_inference``, and so on.

        Returns:
            What the program gets from the method.
        """
        return save(**arguments)


@contextlib.contextmanager
def override_trainers(overrides: TrainerOverrides) -> Generator[None]:
    """Activate overrides in this process for the duration of a ``with`` block.

    Args:
        overrides: What is called for each trainer.

    Raises:
        RuntimeError: Other overrides are active.

    >>> with override_trainers(TrainerOverrides()):
    ...     pass  # each Trainer(...) and fit here is passed to it
    """
    global _active
    if _active is not None:
        raise RuntimeError(f"{_active!r} already overrides the trainers of this process.")
    _active = overrides
    try:
        yield
    finally:
        _active = None


def run_overrides(method: Callable[..., None], trainer: Trainer, arguments: dict[str, Any]) -> bool:
    """Let the active overrides call a method of a trainer; return whether there are any.

    Args:
        method: ``Trainer.__init__`` or ``Trainer.fit``.
        trainer: The trainer.
        arguments: What the program passes.

    >>> run_overrides(composer.Trainer.fit, trainer, {"duration": "1ep"})  # doctest: +SKIP
    False
    """
    if _active is None or any(trainer is one for one in _overridden):
        return False
    overridden = getattr(_active, method.__name__.strip("_"))
    _overridden.append(trainer)
    try:
        overridden(trainer, functools.partial(method, trainer), arguments)
    finally:
        _overridden.pop()
    return True


def saves(method: Callable[P, T]) -> Callable[P, T]:
    """Mark a method of the trainer that writes files, so that overrides are called instead.

    Args:
        method: The method.

    >>> from composer import Trainer
    >>> saves(Trainer.save_checkpoint).__name__
    'save_checkpoint'
    """
    signature = inspect.signature(method)

    @functools.wraps(method)
    def call(*positional: P.args, **arguments: P.kwargs) -> T:
        if _active is None:
            return method(*positional, **arguments)
        given = signature.bind(*positional, **arguments)
        given.apply_defaults()
        trainer, *_ = given.args
        given.arguments.pop("self")
        return _active.save(trainer, functools.partial(cast("Callable[..., T]", method), trainer), given.arguments)

    return call
