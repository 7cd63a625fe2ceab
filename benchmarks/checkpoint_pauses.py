"""Time an asynchronous save inside a training loop: the call, and what later steps lose until the file is written."""

from __future__ import annotations

import itertools
import statistics
import time
from collections.abc import Callable
from typing import Any

__all__ = ["MOST_STEPS", "Pause", "composer_pause"]

_BEFORE = 5  # steps that tell how long an undisturbed one takes, after a first one
MOST_STEPS = 20_000


class Pause:
    """The times of one run that saves once; the loop reports each step to it.

    With t the time from the start of the save to the start of the first step after the file is complete, n the number
    of steps between, and s the median of the steps before the save, the run loses t - n s.

    Args:
        save: Starts an asynchronous save, and returns a function that tells whether the file is complete.

    >>> pause = Pause(lambda: lambda: True)
    >>> while not pause.step_starts():
    ...     pause.step_ends()
    >>> pause.call <= pause.lost + 1
    True
    """

    def __init__(self, save: Callable[[], Callable[[], bool]]) -> None:
        self._save = save
        self._starts: list[float] = []
        self._begin = 0.0
        self._is_complete: Callable[[], bool] | None = None
        self.call = 0.0
        """Seconds of the call itself."""

    def step_starts(self) -> bool:
        """Report the start of a step; returns whether this is the last one.

        Raises:
            RuntimeError: No file appears.
        """
        self._starts.append(time.perf_counter())
        if len(self._starts) > MOST_STEPS:
            raise RuntimeError(f"The asynchronous save wrote no file within {MOST_STEPS} steps.")
        return self._is_complete is not None and self._is_complete()

    def step_ends(self) -> None:
        """Report the end of a step; after a few, this saves."""
        if len(self._starts) == _BEFORE + 2:
            self._begin = time.perf_counter()
            self._is_complete = self._save()
            self.call = time.perf_counter() - self._begin

    @property
    def lost(self) -> float:
        """Seconds that training lost to the save, the call included."""
        before = self._starts[1 : _BEFORE + 2]
        step = statistics.median(later - earlier for earlier, later in itertools.pairwise(before))
        after = len(self._starts) - (_BEFORE + 3)  # steps between the save and the last start
        return self._starts[-1] - self._begin - after * step


def composer_pause(trainer: Any, saver: Any) -> Pause:
    """Train until an asynchronous save has been started and written.

    Args:
        trainer: Its data last for some thousand steps.
        saver: One of its callbacks, asynchronous, which never saves by itself.
    """
    from composer.core.callback import Callback

    class Clock(Callback):
        def batch_start(self, state: Any, logger: Any) -> None:
            if pause.step_starts():
                state.stop_training()

        def batch_checkpoint(self, state: Any, logger: Any) -> None:
            pause.step_ends()

    def save() -> Callable[[], bool]:
        from pathlib import Path

        saver.save(trainer.state, trainer.logger)
        return Path(saver.saved_checkpoints[-1]).exists  # it is renamed when complete

    pause, clock = Pause(save), Clock()
    trainer.state.callbacks.append(clock)
    try:
        trainer.fit(duration=f"{2 * MOST_STEPS}ba")
    finally:
        trainer.state.callbacks.remove(clock)
    return pause
