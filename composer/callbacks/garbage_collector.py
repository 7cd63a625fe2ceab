"""Python's garbage collection at chosen steps, the same on all ranks."""

from __future__ import annotations

import gc
import time
from typing import TYPE_CHECKING

from composer.core.callback import Callback
from composer.core.event import Event
from composer.core.interval import create_interval_scheduler
from composer.core.time import Time, TimeUnit, ensure_time

if TYPE_CHECKING:
    from composer.core.logger import Logger
    from composer.core.state import State

__all__ = ["GarbageCollector"]


class GarbageCollector(Callback):
    """Switches Python's automatic garbage collection off while training, and collects at fixed steps instead.

    The automatic collector runs when enough objects have been made, which is in another step on each rank, and every
    rank waits for the one that collects. At fixed steps all of them collect together: often the young objects
    (generations 0 and 1), seldom all that were made since training began. What there was before, such as the model and
    the modules of Python, is collected once when training begins and then left alone (``gc.freeze``), so that no later
    collection walks through it. Evaluations are left to the automatic collector, and after the training everything is
    as it was before.

    Logs ``garbage_collector/seconds``, the time that a collection took, and ``garbage_collector/objects``, how many
    objects it freed, in the steps in which it runs.

    Args:
        interval: How often young objects are collected: epochs, or a time in iterations, epochs, batches, samples,
            tokens or as a share of the training. Time on the clock is refused: ranks would collect at different steps.
        full_interval: How often all objects made in training are collected, likewise.

    Raises:
        TypeError: An interval is no time.
        ValueError: An interval is not positive, or in seconds.

    >>> from composer import Engine, State
    >>> engine = Engine(State(model=torch.nn.Linear(1, 1)), callbacks=GarbageCollector())
    >>> _ = engine.run_event("fit_start")
    >>> gc.isenabled()
    False
    >>> engine.close()
    >>> gc.isenabled()
    True
    """

    def __init__(self, interval: int | str | Time = "100ba", full_interval: int | str | Time = "1ep") -> None:
        self.interval = _checked("interval", interval)
        self.full_interval = _checked("full_interval", full_interval)
        self._young = create_interval_scheduler(self.interval, False, checkpoint_events=False)
        self._full = create_interval_scheduler(self.full_interval, False, checkpoint_events=False)
        self._was_enabled = False
        self._has_frozen = False

    def fit_start(self, state: State, logger: Logger) -> None:
        """Take over from the automatic collector, from a clean start."""
        self._take_over()
        if not gc.get_freeze_count():  # or somebody else has frozen, and will want to unfreeze
            gc.collect()
            gc.freeze()
            self._has_frozen = True

    def batch_end(self, state: State, logger: Logger) -> None:
        """Collect if it is time to."""
        self._collect_if_due(state, logger, Event.BATCH_END)

    def epoch_end(self, state: State, logger: Logger) -> None:
        """Collect if it is time to."""
        self._collect_if_due(state, logger, Event.EPOCH_END)

    def iteration_end(self, state: State, logger: Logger) -> None:
        """Collect if it is time to."""
        self._collect_if_due(state, logger, Event.ITERATION_END)

    def eval_before_all(self, state: State, logger: Logger) -> None:
        """Leave the evaluation, in which nothing fires at fixed steps of the training, to the automatic collector."""
        self._give_back()

    def eval_after_all(self, state: State, logger: Logger) -> None:
        """Take over again."""
        self._take_over()

    def fit_end(self, state: State, logger: Logger) -> None:
        """Put everything back."""
        self._give_back()
        if self._has_frozen:
            self._has_frozen = False
            gc.unfreeze()

    def close(self, state: State, logger: Logger) -> None:
        """Put everything back, also after an error."""
        self.fit_end(state, logger)

    def _take_over(self) -> None:
        if gc.isenabled():  # who has switched it off by other means keeps it off
            self._was_enabled = True
            gc.disable()

    def _give_back(self) -> None:
        if self._was_enabled:
            self._was_enabled = False
            gc.enable()

    def _collect_if_due(self, state: State, logger: Logger, event: Event) -> None:
        full = self._full(state, event)
        if self._young(state, event) or full:
            start = time.perf_counter()
            objects = gc.collect(2 if full else 1)
            seconds = time.perf_counter() - start
            logger.log_metrics({"garbage_collector/seconds": seconds, "garbage_collector/objects": objects})


def _checked(argument: str, interval: int | str | Time) -> Time:
    time = ensure_time(interval, TimeUnit.EPOCH, argument)
    if time.unit is TimeUnit.SECOND:
        raise ValueError(
            f"{argument}={interval!r} is time on the clock, at which ranks are in different steps; give batches, "
            f"such as '100ba'."
        )
    if not time.value > 0:
        raise ValueError(f"{argument} must be positive, such as '100ba'; got {interval!r}.")
    return time
