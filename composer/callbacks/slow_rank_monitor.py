"""SlowRankMonitor: find the straggler, the rank that all others wait for."""

from __future__ import annotations

import math
import socket
import statistics
import time
import warnings
from collections import deque
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from composer import dist
from composer._numbers import positive, whole_number
from composer.core.callback import Callback
from composer.core.time import TimeUnit
from composer.devices import TIMED
from composer.warnings import ComposerWarning

if TYPE_CHECKING:
    from composer.core.logger import Logger
    from composer.core.state import State

__all__ = ["SlowRankMonitor"]

# A warning requires a delay of at least this fraction of the step: a slow rank in a short phase delays nobody.
_MIN_STEP_FRACTION = 0.05


class _RankTimes(NamedTuple):
    """Seconds per step that a rank spends in local work, averaged over steps."""

    data: float
    forward: float
    host: str

    @property
    def total(self) -> float:
        return self.data + self.forward


class SlowRankMonitor(Callback):
    """Logs which rank is slowest and by how much, and warns if all others wait for it (a straggler).

    In distributed training all ranks take the same time per step, since each waits for the slowest. They differ in the
    time of their local work. This callback measures the phases in which data parallelism does not wait: t_r is the
    time that rank r waits for its data and runs forward and loss, averaged over the last ``batch_log_interval`` steps.
    With m the median of t over all ranks but the slowest, it logs

    - ``slow_rank/rank``: the rank s with the largest t;
    - ``slow_rank/slowdown``: t_s / m;
    - ``slow_rank/seconds`` and ``slow_rank/median_seconds``: t_s and m.

    A warning names the rank, its host and the slow phase, once per rank, if the slowdown reaches ``threshold`` and
    t_s - m is at least a twentieth of the step.

    On CUDA and XPU the forward pass is timed by device events, without a synchronization; elsewhere by the host clock.
    Not detected: slowness in the backward pass or the optimizer alone, and that of rank 0 if its buffers (such as batch
    norm statistics) are broadcast before each forward pass. With sharded parameters, ranks wait for each other in the
    forward pass too, so that only slow data loading shows.

    With a single rank nothing is logged.

    Args:
        batch_log_interval: Number of batches between two comparisons, each an all-gather of three values per rank.
        threshold: Slowdown at which to warn.

    Raises:
        TypeError: An argument is not a number.
        ValueError: An argument is not positive.

    >>> SlowRankMonitor(threshold=1.2).threshold
    1.2
    """

    def __init__(self, batch_log_interval: int = 100, threshold: float = 1.5) -> None:
        self.batch_log_interval = whole_number("batch_log_interval", batch_log_interval, minimum=1)
        self.threshold = positive("threshold", threshold)
        self._is_distributed = False
        self._on_device = False
        self._warned: set[int] = set()
        self._pending: deque[tuple[Any, Any]] = deque()
        self._begin()

    def fit_start(self, state: State, logger: Logger) -> None:
        self._is_distributed = dist.get_world_size() > 1
        self._on_device = self._is_distributed and state.device.torch_device.type in TIMED
        self._pending.clear()
        self._begin(state.timestamp.count(TimeUnit.SECOND))

    def before_dataloader(self, state: State, logger: Logger) -> None:
        self._mark = time.perf_counter()

    def after_dataloader(self, state: State, logger: Logger) -> None:
        self._data += time.perf_counter() - self._mark

    def before_forward(self, state: State, logger: Logger) -> None:
        self._mark = self._now(state)

    def before_backward(self, state: State, logger: Logger) -> None:
        now = self._now(state)
        if self._on_device:
            self._pending.append((self._mark, now))
        else:
            self._forward += now - self._mark

    def batch_end(self, state: State, logger: Logger) -> None:
        self._steps += 1
        # The device may lag behind; forward passes it has not finished count in a later step.
        while self._pending and self._pending[0][1].query():
            first, last = self._pending.popleft()
            self._forward += first.elapsed_time(last) / 1e3
        # Independent of the loggers on this rank: the comparison is a collective.
        if self._is_distributed and state.timestamp.count(TimeUnit.BATCH) % self.batch_log_interval == 0:
            self._compare(state, logger)
            self._begin(state.timestamp.count(TimeUnit.SECOND))

    def _begin(self, seconds: float = 0.0) -> None:
        """Reset the measurements, starting at a time of training."""
        self._since = seconds
        self._steps = 0
        self._data = self._forward = 0.0
        self._mark: Any = 0.0

    def _now(self, state: State) -> Any:
        """Return the current time, as a device event if the device supports it."""
        if not self._on_device:
            return time.perf_counter()
        event = torch.Event(state.device.torch_device, enable_timing=True)
        event.record()
        return event

    def _compare(self, state: State, logger: Logger) -> None:
        """All-gather the times of all ranks, and log the slowest rank."""
        local = self._data / self._steps, self._forward / self._steps, socket.gethostname()
        everyone = [_RankTimes(*times) for times in dist.all_gather_object(local)]
        slowest = max(range(len(everyone)), key=lambda rank: everyone[rank].total)
        times = everyone[slowest]
        median = statistics.median(other.total for rank, other in enumerate(everyone) if rank != slowest)
        slowdown = times.total / median if median else math.inf
        logger.enqueue(
            {
                "slow_rank/rank": slowest,
                "slow_rank/slowdown": slowdown,
                "slow_rank/seconds": times.total,
                "slow_rank/median_seconds": median,
            }
        )
        step = (state.timestamp.count(TimeUnit.SECOND) - self._since) / self._steps
        significant = times.total - median >= _MIN_STEP_FRACTION * step
        if slowdown >= self.threshold and significant and slowest not in self._warned and dist.get_global_rank() == 0:
            self._warned.add(slowest)
            message = (
                f"Rank {slowest} on {times.host} is {slowdown:.2f} times as slow as the others, which wait for it: "
                f"per step it takes {times.total:.3g} s ({times.data:.3g} s waiting for data, {times.forward:.3g} s "
                f"forward); the median of the others is {median:.3g} s."
            )
            warnings.warn(message, ComposerWarning, stacklevel=2)
