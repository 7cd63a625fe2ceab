"""Overrides: change the trainers of a program from outside, without changes to the program.

Commands such as ``composer verify`` run a user's script with other arguments of :class:`.Trainer`, or for a few steps
only. This is the only place where they take effect: while overrides are active, calls of ``Trainer(...)`` and
``Trainer.fit`` are passed to them.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Generator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from composer.trainer.trainer import Trainer

__all__ = ["TrainerOverrides", "override_trainers", "run_overrides"]

_active: TrainerOverrides | None = None


class TrainerOverrides:
    """Called instead of ``Trainer.__init__`` and ``Trainer.fit``; a subclass changes what they do.

    What a method calls in turn, such as ``fit`` of the same trainer, is not overridden again.

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


@contextlib.contextmanager
def override_trainers(overrides: TrainerOverrides) -> Generator[None]:
    """Activate overrides in this process for the duration of a ``with`` block.

    Args:
        overrides: What is called for each trainer.

    Raises:
        RuntimeError: Other overrides are active.
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
    """
    global _active
    overrides = _active
    if overrides is None:
        return False
    _active = None
    try:
        getattr(overrides, method.__name__.strip("_"))(trainer, functools.partial(method, trainer), arguments)
    finally:
        _active = overrides
    return True
