"""SlowRankMonitor: which process the others wait for."""

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
from composer._text import positive
from composer.core.callback import Callback
from composer.core.time import TimeUnit
from composer.devices import TIMED
from composer.warnings import ComposerWarning

if TYPE_CHECKING:
    from composer.core.logger import Logger
    from composer.core.state import State

__all__ = ["SlowRankMonitor"]

# A process that is slow in something that hardly takes time delays nobody.
_WORTH_A_WARNING = 0.05


class _Share(NamedTuple):
    """What a process did in the mean step: seconds of its own."""

    data: float
    forward: float
    host: str

    @property
    def own(self) -> float:
        return self.data + self.forward


class SlowRankMonitor(Callback):
    """Logs which process is slowest and by how much, and warns where all others wait for it.

    Processes that train together take the same time for a step, since each waits for the slowest. They differ in the
    time of their own work, of which this takes the parts in which data parallelism does not wait: the time t_r that
    rank r waits for its data and runs forward and loss, in the mean of the last ``batch_log_interval`` steps. With m
    the median of t over all ranks but the slowest, it logs

    - ``slow_rank/rank``: the rank s with the largest t;
    - ``slow_rank/slowdown``: t_s / m;
    - ``slow_rank/seconds`` and ``slow_rank/median_seconds``: t_s and m.

    A warning names the rank, its machine and which part is slow, once for each rank, where the slowdown reaches
    ``threshold`` and t_s - m is at least a twentieth of the step.

    On CUDA and XPU the forward pass is timed by events of the device, which nobody waits for; elsewhere by the clock of
    the host. What is not seen: slowness in the backward pass or the optimizer alone, and that of rank 0 where its
    buffers (of batch norm, say) are sent to the others before each forward pass. Where weights are divided, processes
    wait for each other in the forward pass too, and only slow data shows.

    With one process there is nothing to compare, and nothing is logged.

    Args:
        batch_log_interval: Number of batches between two comparisons, in which all processes exchange three values.
        threshold: Slowdown to warn of.

    Raises:
        TypeError: An argument is not a number.
        ValueError: An argument is not positive.

    >>> SlowRankMonitor(threshold=1.2).threshold
    1.2
    """

    def __init__(self, batch_log_interval: int = 100, threshold: float = 1.5) -> None:
        self.batch_log_interval = positive("batch_log_interval", batch_log_interval)
        self.threshold = positive("threshold", threshold)
        self._several = False
        self._on_device = False
        self._warned: set[int] = set()
        self._pending: deque[tuple[Any, Any]] = deque()
        self._begin()

    def fit_start(self, state: State, logger: Logger) -> None:
        self._several = dist.get_world_size() > 1
        self._on_device = self._several and state.device.torch_device.type in TIMED
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
        # The device may be behind; what it has not done yet counts in a later step.
        while self._pending and self._pending[0][1].query():
            first, last = self._pending.popleft()
            self._forward += first.elapsed_time(last) / 1e3
        # Not by who has loggers: all processes have to take part or none.
        if self._several and state.timestamp.count(TimeUnit.BATCH) % self.batch_log_interval == 0:
            self._compare(state, logger)
            self._begin(state.timestamp.count(TimeUnit.SECOND))

    def _begin(self, seconds: float = 0.0) -> None:
        """Begin to count anew, at a time of training."""
        self._since = seconds
        self._steps = 0
        self._data = self._forward = 0.0
        self._mark: Any = 0.0

    def _now(self, state: State) -> Any:
        """The time, of the device where it keeps one."""
        if not self._on_device:
            return time.perf_counter()
        event = torch.Event(state.device.torch_device, enable_timing=True)
        event.record()
        return event

    def _compare(self, state: State, logger: Logger) -> None:
        """Tell the others what this process did, and log who did it most slowly."""
        mine = self._data / self._steps, self._forward / self._steps, socket.gethostname()
        everyone = [_Share(*share) for share in dist.all_gather_object(mine)]
        slowest = max(range(len(everyone)), key=lambda rank: everyone[rank].own)
        share = everyone[slowest]
        median = statistics.median(other.own for rank, other in enumerate(everyone) if rank != slowest)
        slowdown = share.own / median if median else math.inf
        logger.enqueue(
            {
                "slow_rank/rank": slowest,
                "slow_rank/slowdown": slowdown,
                "slow_rank/seconds": share.own,
                "slow_rank/median_seconds": median,
            }
        )
        step = (state.timestamp.count(TimeUnit.SECOND) - self._since) / self._steps
        worth = share.own - median >= _WORTH_A_WARNING * step
        if slowdown >= self.threshold and worth and slowest not in self._warned and dist.get_global_rank() == 0:
            self._warned.add(slowest)
            message = (
                f"Rank {slowest} on {share.host} is {slowdown:.2f} times as slow as the others, which wait for it: "
                f"in a step it takes {share.own:.3g} s ({share.data:.3g} s to wait for data, {share.forward:.3g} s "
                f"forward), their median is {median:.3g} s."
            )
            warnings.warn(message, ComposerWarning, stacklevel=2)
