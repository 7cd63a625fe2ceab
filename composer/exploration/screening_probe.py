"""The probe of screening: trains blocks of steps in turn with others, and refuses methods without effect."""

from __future__ import annotations

import contextlib
import gc
import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from composer import rng
from composer.exploration.training_clock import CLOCKS, Clock
from composer.trainer.arguments import as_evaluators
from composer.trials.block_steps import Blocks
from composer.trials.endless import endless, without_ending_schedules
from composer.trials.peak_memory import reset_peak_memory
from composer.trials.probe import Finished, Probe
from composer.warnings import NoEffectWarning

if TYPE_CHECKING:
    from composer.trainer import Trainer

__all__ = ["SCREENING_PROBE", "ScreeningProbe"]

SCREENING_PROBE = "composer.exploration.screening_probe:ScreeningProbe"


class ScreeningProbe(Probe):
    """Trains without end or evaluation, a block of steps for each token; see :class:`.Blocks`.

    Args:
        folder: Folder of the trial, with the tokens.
        expected: Warnings of the unchanged program about what has no effect; others are errors.
        clock: What seconds of steps are counted in.

    >>> Trial("screen-BlurPool", target, SCREENING_PROBE)  # doctest: +SKIP
    """

    def __init__(self, folder: Path, expected: Sequence[str] = (), clock: Clock = "wall") -> None:
        super().__init__(folder)
        self._clock = CLOCKS[clock]
        gc.unfreeze()  # the fork server hides what it has imported from the garbage collector
        rng.seed_all(0)
        warnings.filterwarnings("error", category=NoEffectWarning)
        for message in expected:
            warnings.filterwarnings("default", re.escape(message), NoEffectWarning)

    def init(self, arguments: dict[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
        """Return the arguments of the trainer without end and without evaluation, with the blocks."""
        changed = _without_evaluations({**arguments, "seed": 0})
        changed["callbacks"] = [Blocks(self.folder, self._clock), *(arguments["callbacks"] or ())]
        return changed

    def fit(self, trainer: Trainer, fit: Callable[..., None], arguments: dict[str, Any]) -> None:
        """Train until the process is ended."""
        if not self.is_meant:
            fit(**arguments)
            return
        if arguments.get("duration") is not None:
            arguments["duration"] = endless(arguments["duration"])
        elif trainer.state.max_duration is not None:
            trainer.state.max_duration = endless(trainer.state.max_duration)
        for callback in trainer.state.callbacks:
            if isinstance(callback, Blocks):
                callback.is_active = True
        reset_peak_memory(trainer.state.device.torch_device)
        with contextlib.suppress(Finished):
            fit(**without_ending_schedules(_without_evaluations(arguments)))


def _without_evaluations(arguments: dict[str, Any]) -> dict[str, Any]:
    """Return arguments with evaluators that are never due: callbacks may look for their metrics."""
    if arguments.get("eval_dataloader") is None:
        return arguments
    subset = arguments["eval_subset_num_batches"]
    evaluators = as_evaluators(arguments["eval_dataloader"], 0, subset)
    for evaluator in evaluators:
        evaluator.eval_interval = 0
    return {**arguments, "eval_dataloader": evaluators}
