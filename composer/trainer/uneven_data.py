"""Keeping processes together whose data end at different places."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from composer import dist
from composer.core.types import Batch
from composer.trainer.step_sync import StepSync, Told

__all__ = ["END", "UnevenInputs"]

END: Any = object()
"""Stands for the batch that is not there."""


class UnevenInputs:
    """Lets a process that has no batch take part in a step in which others have one, with a batch that counts nothing.

    Models and methods may wait for all processes in any step, so all have to run the same number of them. A process
    with a batch knows that the step takes place and waits for nobody. One without waits to hear whether any has one,
    and takes the last batch that it had; in the first step, where it may have had none, all wait, and one that has a
    batch gives it to those that have none.

    Args:
        step_sync: By which they tell each other.

    Attributes:
        is_idle: Whether this process has no batch of its own in this step.

    >>> uneven_inputs = UnevenInputs(StepSync())
    >>> uneven_inputs.keep([1, 2])
    >>> uneven_inputs.is_idle
    False
    """

    def __init__(self, step_sync: StepSync) -> None:
        self.is_idle = False
        self._step_sync = step_sync
        self._spare: Any = END
        self._all_have_one = False

    def keep(self, batch: Batch) -> None:
        """Note the batch that this process has, as its loader yielded it."""
        self._spare, self.is_idle = batch, False

    def meet(self) -> None:
        """Take part in the first step, once this process has told the others that it has a batch."""
        if not self._all_have_one:
            self._deal_out(self._step_sync.counts())

    def substitute(self, tell: Callable[[], object]) -> Batch:
        """Return a batch to take part with where this process has none; ``END`` where none has one.

        Args:
            tell: Tells the others that there is none.
        """
        tell()
        told = self._step_sync.counts()
        if not any(told.has_batch):
            return END
        if not self._all_have_one:
            self._deal_out(told)
        self.is_idle = True
        return self._spare

    def _deal_out(self, told: Told) -> None:
        """Give those that never had a batch one of another process."""
        self._all_have_one = True
        if all(told.has_batch):
            return
        source = told.has_batch.index(True)
        box = [self._spare if dist.get_global_rank() == source else None]
        dist.broadcast_object_list(box, source)
        if self._spare is END:
            self._spare = box[0]
