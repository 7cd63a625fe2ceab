"""MemoryMonitor: log GPU or host memory usage (allocated, active, reserved, peak)."""

from __future__ import annotations

import contextlib
import os
import warnings
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch

from composer import dist
from composer._lazy import import_extra
from composer._numbers import whole_number
from composer._resident_memory import resident_peak
from composer._text import did_you_mean
from composer.core.callback import Callback
from composer.core.time import TimeUnit
from composer.warnings import ComposerWarning

if TYPE_CHECKING:
    from torch import Tensor

    from composer.core.logger import Logger
    from composer.core.state import State

__all__ = ["MemoryMonitor"]

# Keys of an accelerator's allocator -> names in the log.
_ACCELERATOR = {
    "allocated_bytes.all.current": "current_allocated_mem",
    "active_bytes.all.current": "current_active_mem",
    "inactive_split_bytes.all.current": "current_inactive_mem",
    "reserved_bytes.all.current": "current_reserved_mem",
    "allocated_bytes.all.peak": "peak_allocated_mem",
    "active_bytes.all.peak": "peak_active_mem",
    "inactive_split_bytes.all.peak": "peak_inactive_mem",
    "reserved_bytes.all.peak": "peak_reserved_mem",
    "num_alloc_retries": "alloc_retries",
}
_HOST = {"resident_bytes.current": "current_resident_mem", "resident_bytes.peak": "peak_resident_mem"}
_MPS = {"allocated_bytes.all.current": "current_allocated_mem", "reserved_bytes.all.current": "current_reserved_mem"}
_WITHOUT_ALLOCATOR = ("cpu", "xla")
_GIGABYTE = 1e9
_STATM = "/proc/self/statm"


class MemoryMonitor(Callback):
    """Logs memory usage of the device as ``memory/{name}``, before the optimizer step.

    On an accelerator these are statistics of PyTorch's allocator: current and peak, in gigabytes (1e9 bytes), each of
    ``allocated``, ``active``, ``inactive`` (free, but split off larger blocks) and ``reserved``, as in
    ``memory/peak_allocated_mem``, and ``memory/alloc_retries``, the number of times that the allocator had to free
    cached memory and retry. On the CPU, and on devices without a PyTorch allocator, it logs the memory of the process,
    ``memory/current_resident_mem`` and ``memory/peak_resident_mem``. Values are rounded to five significant digits.

    The host keeps these statistics, so reading them does not synchronize with the device.

    Args:
        memory_keys: Which allocator statistics to log: keys of :func:`torch.accelerator.memory_stats`, each mapped to
            a name in the log. Keys that contain ``bytes`` are logged in gigabytes.
        dist_aggregate_batch_interval: Number of batches between two points of ``memory/{name}_avg``, ``_min`` and
            ``_max``, over all ranks. None disables them.
        batch_log_interval: Number of batches between two points of the other metrics.

    Raises:
        TypeError: An interval is not an integer.
        ValueError: An interval is not positive; or, in the first step, the allocator has no statistic for a key of
            ``memory_keys``.

    >>> from composer import Engine, State
    >>> from composer.loggers import InMemoryLogger
    >>> log = InMemoryLogger()
    >>> engine = Engine(State(model=torch.nn.Linear(1, 1)), callbacks=[MemoryMonitor(), log])
    >>> _ = engine.run_event("after_train_batch")
    >>> sorted(log.most_recent_values)
    ['memory/current_resident_mem', 'memory/peak_resident_mem']
    """

    def __init__(
        self,
        memory_keys: dict[str, str] | None = None,
        dist_aggregate_batch_interval: int | None = None,
        batch_log_interval: int = 1,
    ) -> None:
        if dist_aggregate_batch_interval is not None:
            dist_aggregate_batch_interval = whole_number(
                "dist_aggregate_batch_interval", dist_aggregate_batch_interval, minimum=1
            )
        self.memory_keys = memory_keys
        self.dist_aggregate_batch_interval = dist_aggregate_batch_interval
        self.batch_log_interval = whole_number("batch_log_interval", batch_log_interval, minimum=1)

    def init(self, state: State, logger: Logger) -> None:
        device_type = state.device.torch_device.type
        if self.memory_keys is not None and device_type in _WITHOUT_ALLOCATOR:
            message = (
                f"memory_keys selects statistics of an accelerator's allocator, and {device_type} has none; "
                f"MemoryMonitor logs the memory of the process instead."
            )
            warnings.warn(message, ComposerWarning, stacklevel=2)

    def after_train_batch(self, state: State, logger: Logger) -> None:
        batch, every = state.timestamp.count(TimeUnit.BATCH), self.dist_aggregate_batch_interval
        log_local = batch % self.batch_log_interval == 0 and bool(logger.destinations)
        log_global = every is not None and batch % every == 0
        if not log_local and not log_global:
            return
        report = _report(state.device.torch_device, self.memory_keys)
        metrics: dict[str, Any] = {f"memory/{name}": value for name, value in report.items()} if log_local else {}
        if log_global:
            metrics |= _over_ranks(report, state)
        logger.enqueue(metrics)


def _report(device: torch.device, keys: Mapping[str, str] | None) -> dict[str, float]:
    """Return the memory statistics of a device by their names in the log."""
    if device.type in _WITHOUT_ALLOCATOR:
        stats: Mapping[str, Any] = _process_memory()
        keys = _HOST
    elif device.type == "mps":
        current, reserved = torch.mps.current_allocated_memory(), torch.mps.driver_allocated_memory()
        stats = dict(zip(_MPS, (current, reserved), strict=True))
        keys = _MPS if keys is None else keys
    else:
        stats = torch.accelerator.memory_stats(device)
        keys = _ACCELERATOR if keys is None else keys
    report: dict[str, float] = {}
    for key, name in keys.items():
        if key not in stats:
            raise ValueError(
                f"memory_keys has {key!r}, but the allocator of {device} has no such key.{did_you_mean(key, stats)}"
            )
        report[name] = float(f"{stats[key] / _GIGABYTE:.5g}") if "bytes" in key else stats[key]
    return report


def _process_memory() -> dict[str, float]:
    """Return the current and peak resident memory of this process, in bytes."""
    with contextlib.suppress(FileNotFoundError):
        current = _resident_pages() * os.sysconf("SC_PAGE_SIZE")
        # The kernel updates the peak with a delay.
        return dict(zip(_HOST, (current, max(current, resident_peak())), strict=True))
    memory = import_extra("psutil", "system", "MemoryMonitor on the CPU of this system").Process().memory_info()
    peak = getattr(memory, "peak_wset", None)  # Windows
    if peak is None:
        peak = resident_peak()
    return dict(zip(_HOST, (memory.rss, peak), strict=True))


def _resident_pages() -> int:
    """Return the number of resident pages of this process."""
    # Without a file object, which is three times slower, because this may run in every step.
    descriptor = os.open(_STATM, os.O_RDONLY)
    try:
        return int(os.read(descriptor, 128).split()[1])
    finally:
        os.close(descriptor)


def _over_ranks(report: Mapping[str, float], state: State) -> dict[str, Tensor]:
    """Return the mean, minimum and maximum of each statistic over all ranks, on the device."""
    values = torch.tensor(list(report.values()), dtype=torch.float32)
    if dist.get_world_size() > 1:
        values = state.device.tensor_to_device(values)
    everyone = torch.stack(dist.all_gather(values))
    found = {"avg": everyone.mean(0), "min": everyone.amin(0), "max": everyone.amax(0)}
    return {
        f"memory/{name}_{reduction}": value
        for reduction, column in found.items()
        for name, value in zip(report, column.unbind(), strict=True)
    }
