"""SpeedMonitor: log throughput in batches, samples, tokens and FLOPs per second, and MFU."""

from __future__ import annotations

import math
import warnings
from collections import deque
from collections.abc import Callable
from numbers import Real
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from composer import dist
from composer._numbers import positive, whole_number
from composer._text import one_of
from composer.callbacks.peak_flops import GPU_AVAILABLE_FLOPS, get_gpu_flops_available
from composer.core.callback import Callback
from composer.core.time import TimeUnit
from composer.warnings import ComposerWarning

if TYPE_CHECKING:
    from torch import Tensor

    from composer.core.logger import Logger
    from composer.core.state import State

__all__ = ["GPU_AVAILABLE_FLOPS", "SpeedMonitor", "get_gpu_flops_available"]

_SECONDS = {"seconds": 1, "minutes": 60, "hours": 3600, "days": 86400}


class _Point(NamedTuple):
    """Progress after a batch; FLOPs are those of this rank, the other counts are global."""

    seconds: float
    samples: int
    tokens: int
    flops: float


class SpeedMonitor(Callback):
    """Logs training throughput over a window of batches.

    After each batch, once the window is full:

    - ``throughput/batches_per_sec``, ``throughput/samples_per_sec``, and ``throughput/tokens_per_sec`` if tokens are
      counted; the same with ``throughput/device/``, divided by the number of ranks;
    - ``throughput/flops_per_sec`` and ``throughput/device/flops_per_sec`` if the model has a method
      ``flops_per_batch(batch)``, which returns the floating-point operations of the forward and backward pass of this
      rank's batch;
    - ``throughput/device/mfu``, the fraction of the device's peak FLOP/s (model FLOPs utilization).

    After each batch, ``time/train`` and ``time/val``, the time spent in training and evaluation, and their sum
    ``time/total``.

    Time is that of ``state.timestamp``, which excludes evaluations and includes what the host does while the
    accelerator works. Over a window of several batches host and accelerator stay in step, so that no synchronization
    with the device is needed.

    Args:
        window_size: Number of batches to average over.
        gpu_flops_available: Peak FLOP/s of a device. By default looked up by the device's name and the precision.
        time_unit: Unit of the ``time/`` metrics: ``seconds``, ``minutes``, ``hours`` or ``days``.

    Raises:
        TypeError: ``window_size`` or ``gpu_flops_available`` is not a number.
        ValueError: One of them is not positive, or the unit is unknown.

    >>> from composer import Engine, State, Timestamp
    >>> from composer.loggers import InMemoryLogger
    >>> log = InMemoryLogger()
    >>> engine = Engine(State(model=torch.nn.Linear(1, 1)), callbacks=[SpeedMonitor(window_size=1), log])
    >>> for batch in (1, 2):
    ...     engine.state.timestamp = Timestamp(batch=batch, sample=32 * batch, total_wct=0.5 * batch)
    ...     _ = engine.run_event("batch_end")
    >>> log.most_recent_values["throughput/samples_per_sec"]
    64.0

    Paper: model FLOPs utilization, Chowdhery et al. 2022, https://arxiv.org/abs/2204.02311
    """

    def __init__(
        self, window_size: int = 100, gpu_flops_available: float | None = None, time_unit: str = "hours"
    ) -> None:
        self.window_size = whole_number("window_size", window_size, minimum=1)
        if gpu_flops_available is not None:
            positive("gpu_flops_available", gpu_flops_available)
        self.gpu_flops_available = gpu_flops_available
        self.time_unit = one_of("time_unit", time_unit, _SECONDS)
        self.divider = _SECONDS[self.time_unit]
        self.total_eval_wct = 0.0
        self._window: deque[_Point] = deque(maxlen=self.window_size + 1)
        self._flops = 0.0
        self._flops_of: Callable[[Any], Any] | None = None
        self._peak: float | None = None

    def init(self, state: State, logger: Logger) -> None:
        self.total_eval_wct = 0.0

    def fit_start(self, state: State, logger: Logger) -> None:
        self._window.clear()
        self._flops = 0.0
        self._flops_of = _flops_per_batch(state.model)
        self._peak = self.gpu_flops_available
        if self._flops_of is not None and self._peak is None and state.device.name != "cpu":
            self._peak = get_gpu_flops_available(state)
            if self._peak is None:
                message = (
                    f"The peak FLOP/s of {state.device.torch_device} in {state.precision} are unknown, so "
                    f"throughput/device/mfu is not logged. Pass SpeedMonitor(gpu_flops_available=...)."
                )
                warnings.warn(message, ComposerWarning, stacklevel=2)

    def batch_end(self, state: State, logger: Logger) -> None:
        now = state.timestamp
        seconds = now.count(TimeUnit.SECOND)
        if self._flops_of is not None:
            self._flops += _number(self._flops_of(state.batch))
        self._window.append(_Point(seconds, now.count(TimeUnit.SAMPLE), now.count(TimeUnit.TOKEN), self._flops))
        unit = self.divider
        metrics: dict[str, float | Tensor] = {
            "time/train": seconds / unit,
            "time/val": self.total_eval_wct / unit,
            "time/total": (seconds + self.total_eval_wct) / unit,
        }
        if len(self._window) == self._window.maxlen:
            metrics.update(self._throughput(state))
        logger.enqueue(metrics)

    def eval_end(self, state: State, logger: Logger) -> None:
        self.total_eval_wct += state.eval_timestamp.count(TimeUnit.SECOND)

    def state_dict(self) -> dict[str, Any]:
        return {"total_eval_wct": self.total_eval_wct}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.total_eval_wct = float(state.get("total_eval_wct", 0.0))

    def _throughput(self, state: State) -> dict[str, float | Tensor]:
        """Return the throughput metrics of the window."""
        first, last = self._window[0], self._window[-1]
        # NaN if the clock did not advance, as a coarse timer may not, instead of a division by zero.
        seconds = last.seconds - first.seconds or math.nan
        ranks = dist.get_world_size()
        rates = {
            "batches_per_sec": (len(self._window) - 1) / seconds,
            "samples_per_sec": (last.samples - first.samples) / seconds,
        }
        if last.tokens > first.tokens:
            rates["tokens_per_sec"] = (last.tokens - first.tokens) / seconds
        metrics: dict[str, float | Tensor] = {}
        for name, rate in rates.items():
            metrics[f"throughput/{name}"] = rate
            metrics[f"throughput/device/{name}"] = rate / ranks
        if self._flops_of is not None:
            total = _over_ranks((last.flops - first.flops) / seconds, state, ranks)
            metrics["throughput/flops_per_sec"] = total
            metrics["throughput/device/flops_per_sec"] = total / ranks
            if self._peak is not None:
                metrics["throughput/device/mfu"] = total / ranks / self._peak
        return metrics


def _over_ranks(value: float, state: State, ranks: int) -> float | Tensor:
    """Return the sum of a number over all ranks, left on the device to avoid a synchronization."""
    if ranks == 1:
        return value
    # Filled on the device, since a copy from the host would synchronize.
    total = torch.full((), value, dtype=torch.float32, device=state.device.torch_device)
    dist.all_reduce(total)
    return total


def _number(flops: Any) -> float:
    """Return a number of FLOPs; raise if it is a tensor, since reading it would synchronize with the device."""
    if not isinstance(flops, Real):
        raise TypeError(f"flops_per_batch must return a number, not a {type(flops).__name__}; got {flops!r}.")
    return float(flops)


def _flops_per_batch(model: torch.nn.Module) -> Callable[[Any], Any] | None:
    """Return the model's ``flops_per_batch`` method, if it has one."""
    if not hasattr(model, "flops_per_batch"):
        model = getattr(model, "module", model)
    count = getattr(model, "flops_per_batch", None)
    if count is not None and not callable(count):
        raise TypeError(
            f"{type(model).__name__}.flops_per_batch must be a method that takes a batch and returns a number; got "
            f"{count!r}."
        )
    return count
