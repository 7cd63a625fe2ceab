"""GarbageCollector: run Python's garbage collection at the same steps on all ranks, against stragglers."""

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
    """Disables Python's automatic garbage collection during training, and collects at fixed steps instead.

    The automatic collector runs when enough objects have been created, which happens in a different step on each rank,
    and every rank waits for the one that collects. With fixed steps all ranks collect together: young objects
    (generations 0 and 1) often, all objects created since training began rarely. Older objects, such as the model and
    the Python modules, are collected once when training begins and then frozen (``gc.freeze``), so that later
    collections do not traverse them. Evaluations use the automatic collector, and after training everything is
    restored.

    Logs ``garbage_collector/seconds``, the duration of a collection, and ``garbage_collector/objects``, the number of
    objects freed, in the steps in which it runs.

    Args:
        interval: How often young objects are collected: epochs, or a time in iterations, epochs, batches, samples,
            tokens or a fraction of the run. Wall-clock time raises an error: ranks would collect at different steps.
        full_interval: How often all objects created in training are collected, in the same units.

    Raises:
        TypeError: An interval is not a time.
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
        """Disable the automatic collector after one full collection."""
        self._disable_automatic()
        if not gc.get_freeze_count():  # otherwise other code froze objects, and will want to unfreeze them
            gc.collect()
            gc.freeze()
            self._has_frozen = True

    def batch_end(self, state: State, logger: Logger) -> None:
        """Collect if due."""
        self._collect_if_due(state, logger, Event.BATCH_END)

    def epoch_end(self, state: State, logger: Logger) -> None:
        """Collect if due."""
        self._collect_if_due(state, logger, Event.EPOCH_END)

    def iteration_end(self, state: State, logger: Logger) -> None:
        """Collect if due."""
        self._collect_if_due(state, logger, Event.ITERATION_END)

    def eval_before_all(self, state: State, logger: Logger) -> None:
        """Enable the automatic collector during the evaluation, in which no training steps happen."""
        self._restore_automatic()

    def eval_after_all(self, state: State, logger: Logger) -> None:
        """Disable the automatic collector again."""
        self._disable_automatic()

    def fit_end(self, state: State, logger: Logger) -> None:
        """Restore the automatic collector and unfreeze."""
        self._restore_automatic()
        if self._has_frozen:
            self._has_frozen = False
            gc.unfreeze()

    def close(self, state: State, logger: Logger) -> None:
        """Restore everything, also after an error."""
        self.fit_end(state, logger)

    def _disable_automatic(self) -> None:
        if gc.isenabled():  # if other code has disabled it, it stays disabled
            self._was_enabled = True
            gc.disable()

    def _restore_automatic(self) -> None:
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
    # At a wall-clock time, ranks are in different steps.
    time = ensure_time(interval, TimeUnit.EPOCH, argument, [unit for unit in TimeUnit if unit is not TimeUnit.SECOND])
    if not time.value > 0:
        raise ValueError(f"{argument} must be positive, such as '100ba'; got {interval!r}.")
    return time
