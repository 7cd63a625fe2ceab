"""What the start of an epoch takes where epochs are longer than a measurement, as for a sampler that lists its samples.

The first epoch of a run also starts what is started once, such as persistent workers or a file that is opened. So it
only says whether a start may matter; what is measured is the start of a further epoch.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from typing import Any

from torch.utils.data import DataLoader, IterableDataset

from composer.core.state import State
from composer.diagnosis.durations import milliseconds
from composer.diagnosis.line_sampler import LineSampler

__all__ = ["EpochStarts", "start_evidence"]

# Fraction of the time from which a start matters.
_MATTERS = 0.02


class EpochStarts:
    """Watches for starts of epochs among the steps of a run, and measures another one if none was timed.

    Attributes:
        is_timed: Whether a step that was timed is the first of an epoch.

    >>> EpochStarts().is_timed
    False
    """

    def __init__(self) -> None:
        self.is_timed = False
        self._first = math.inf  # seconds of the start that was seen, if any

    def note(self, state: State, step: Mapping[str, float], *, timed: bool) -> None:
        """Note a step.

        Args:
            state: The state, after the step.
            step: Seconds of each part of the step.
            timed: Whether the step is among those that are timed.
        """
        if int(state.timestamp.batch_in_epoch) == 1:
            self._first = step.get("data", 0.0)
            self.is_timed = self.is_timed or timed

    def matters(self, state: State, step: float) -> bool:
        """Return whether the starts of epochs may take a part of the time that the timed steps lack.

        Args:
            state: The state.
            step: Mean seconds of a step.
        """
        phase = state.train_phase
        loader = None if phase.epoch_iterators is None else phase.epoch_iterators.loader
        # Other data may be such that a further iterator is no further epoch.
        is_repeatable = isinstance(loader, DataLoader) and not isinstance(loader.dataset, IterableDataset)
        if self.is_timed or not is_repeatable or not phase.steps_per_epoch:
            return False
        return self._first > _MATTERS * step * phase.steps_per_epoch

    def measure(self, state: State, usual: float) -> tuple[dict[str, float], LineSampler]:
        """Begin a further epoch of the data; the run cannot go on afterwards.

        Args:
            state: The state.
            usual: Mean seconds for which another step waits for its batch.

        Returns:
            The seconds that the first batch takes longer and the number of steps of an epoch, and the sampled lines.
        """
        phase = state.train_phase
        assert phase.epoch_iterators is not None and phase.steps_per_epoch
        phase.iterator = None  # ends its workers, unless they persist
        began = time.perf_counter()
        with LineSampler(lambda: "data") as sampler:
            next(phase.epoch_iterators.begin(epoch=int(phase.timestamp.epoch) + 1), None)
        seconds = time.perf_counter() - began - usual
        return {"seconds": max(0.0, seconds), "steps": phase.steps_per_epoch}, sampler


def start_evidence(result: Mapping[str, Any]) -> list[str]:
    """Return what the start of an epoch takes in words, if it was measured and takes a part of the time.

    Args:
        result: What :class:`.StepRecorder` measured.

    >>> start_evidence({"epoch_start": {"seconds": 1.2, "steps": 100}})
    ['the start of an epoch takes 1,200 ms, 12 ms for each of its 100 steps']
    """
    start = result.get("epoch_start")
    if start is None:
        return []
    steps, seconds = start["steps"], start["seconds"]
    each = milliseconds(seconds / steps)
    return [f"the start of an epoch takes {milliseconds(seconds)} ms, {each} ms for each of its {steps} steps"]
