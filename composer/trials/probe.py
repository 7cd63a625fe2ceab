"""Probes: what a trial measures. A probe sees the arguments of the trainer, and runs ``fit`` in its own way."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from composer.trainer import Trainer

__all__ = ["Finished", "Probe"]


class Finished(BaseException):
    """Raised by a callback of a probe to end the training; not an Exception, which programs may catch.

    >>> raise Finished
    Traceback (most recent call last):
    composer.trials.probe.Finished
    """


class Probe:
    """Measures a trial; a subclass overrides what it needs. Each rank has one.

    Args:
        folder: Folder for files of the trial, the same on all ranks.
        **arguments: The ``probe_arguments`` of the trial.

    Attributes:
        finish: Ends the process at once with the result so far, as a signal would: nothing is cleaned up. Returns
            during a ``fit`` that is not the one that is meant.
        is_meant: Whether the present call of ``fit`` is the one that the trial is about; those before it are to be
            short.

    >>> class Steps(Probe):
    ...     def fit(self, trainer, fit, arguments):
    ...         fit(**{**arguments, "duration": "2ba"})
    ...         self.steps = trainer.state.timestamp.batch.value
    ...
    ...     def result(self):
    ...         return {"steps": self.steps}
    """

    finish: Callable[[], None]
    is_meant = True

    def __init__(self, folder: Path, **arguments: Any) -> None:
        self.folder = folder
        for name in arguments:
            raise TypeError(f"{type(self).__name__} has no argument {name!r}.")

    def init(self, arguments: dict[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
        """Return the arguments of the trainer.

        Args:
            arguments: All arguments after the changes of the trial, without the program's outputs.
            given: All arguments as the program gives them.
        """
        del given
        return arguments

    def fit(self, trainer: Trainer, fit: Callable[..., None], arguments: dict[str, Any]) -> None:
        """Train as the measurement requires; the trial ends afterwards.

        Args:
            trainer: The trainer.
            fit: Its ``fit``.
            arguments: What the program passes to it.
        """
        fit(**arguments)

    def result(self) -> Mapping[str, Any]:
        """Return what was measured, in JSON types; that of rank 0 is recorded."""
        return {}
