"""The probe of a remedy: trains blocks of steps in turn with others, with the outputs of the program."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from composer.callbacks import CheckpointSaver
from composer.diagnosis.first_steps import FirstSteps
from composer.diagnosis.recorder import DoctorProbe
from composer.trials.block_steps import Blocks

if TYPE_CHECKING:
    from composer.trainer import Trainer

__all__ = ["BlockRecorder"]


class BlockRecorder(DoctorProbe):
    """Trains a block of steps for each token, and writes down the seconds of each step and its kind.

    Args:
        folder: Folder of the trial, with the tokens.
        changed: See :class:`.DoctorProbe`.
        edits: See :class:`.DoctorProbe`.

    >>> Trial("block-fused", target, "composer.diagnosis.block_recorder:BlockRecorder")  # doctest: +SKIP
    """

    def init(self, arguments: dict[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
        """Return the arguments of the trainer with the callback that waits for tokens."""
        restored = super().init(arguments, given)
        first = FirstSteps(self.folder, is_active=False)
        restored["callbacks"] = [Blocks(self.folder), *restored["callbacks"], first]
        return restored

    def begin(self, trainer: Trainer) -> None:
        """Let only the ``fit`` that is meant wait."""
        blocks = next(callback for callback in trainer.state.callbacks if isinstance(callback, Blocks))
        blocks.is_active = True
        for callback in trainer.state.callbacks:
            if isinstance(callback, FirstSteps):
                callback.is_active = True
            elif isinstance(callback, CheckpointSaver):
                callback.save = _noting(callback.save, blocks)


def _noting(save: Callable[..., None], blocks: Blocks) -> Callable[..., None]:
    """Return a method of a saver that notes that the step has a checkpoint."""

    @functools.wraps(save)
    def noted(*positional: Any, **named: Any) -> None:
        blocks.events.add("saving")
        save(*positional, **named)

    return noted
