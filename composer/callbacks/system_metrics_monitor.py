"""SystemMetricsMonitor: log CPU, memory, disk, network and GPU utilization of each rank's host."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import torch

from composer import dist
from composer._lazy import import_extra
from composer._numbers import whole_number
from composer.core.callback import Callback
from composer.core.time import TimeUnit

if TYPE_CHECKING:
    from composer.core.logger import Logger
    from composer.core.state import State

__all__ = ["SystemMetricsMonitor"]

_PURPOSE = "SystemMetricsMonitor"


class SystemMetricsMonitor(Callback):
    """Logs the utilization of the hosts that the ranks run on, in training, evaluation and prediction.

    - ``cpu_percentage``: CPU utilization since the last point, in percent;
    - ``cpu_memory_{total,available,used,free,percent,...}``: main memory, in bytes and percent;
    - ``disk_memory_{total,used,free,percent}``: the disk that holds the root directory;
    - ``network_{bytes_sent,bytes_recv,...}``: counters since the host booted;
    - on a GPU also ``gpu_percentage`` and ``memory_percentage``, the percentage of time in which it computed and in
      which it accessed memory, ``gpu_temperature_C`` and ``gpu_power_usage_W``, if the driver reports them.

    Each is logged as ``min_{name}`` and ``max_{name}`` over all ranks, with the ranks that had them as
    ``min_{name}_rank`` and ``max_{name}_rank``; or as ``{name}_rank_{number}`` for every rank.

    Requires the extra ``system``. Reading the values takes some tenths of a millisecond on the host, and some
    milliseconds with a GPU, without synchronizing with the device.

    Args:
        log_all_data: Log the values of every rank, instead of the minimum and maximum.
        batch_log_interval: Number of batches between two logged points.

    Raises:
        MissingConditionalImportError: psutil is not installed; on an NVIDIA GPU, nvidia-ml-py.
        TypeError: ``batch_log_interval`` is not an integer.
        ValueError: ``batch_log_interval`` is not positive.

    >>> from composer import Engine, State
    >>> from composer.loggers import InMemoryLogger
    >>> log = InMemoryLogger()
    >>> state = State(model=torch.nn.Linear(1, 1))
    >>> engine = Engine(state, callbacks=[SystemMetricsMonitor(log_all_data=True), log])
    >>> _ = engine.run_event("init")
    >>> _ = engine.run_event("batch_start")
    >>> 0 <= log.most_recent_values["cpu_memory_percent_rank_0"] <= 100
    True
    """

    def __init__(self, log_all_data: bool = False, batch_log_interval: int = 10) -> None:
        self.log_all_data = log_all_data
        self.batch_log_interval = whole_number("batch_log_interval", batch_log_interval, minimum=1)
        self._psutil: Any = import_extra("psutil", "system", _PURPOSE)

    def init(self, state: State, logger: Logger) -> None:
        self._psutil.cpu_percent()  # the first call only sets the reference point
        if state.device.torch_device.type == "cuda" and torch.version.hip is None:
            import_extra("pynvml", "system", f"{_PURPOSE} on an NVIDIA GPU")

    def batch_start(self, state: State, logger: Logger) -> None:
        self._log(state.timestamp.count(TimeUnit.BATCH), state, logger)

    def eval_batch_start(self, state: State, logger: Logger) -> None:
        self._log(state.eval_timestamp.count(TimeUnit.BATCH), state, logger)

    def predict_batch_start(self, state: State, logger: Logger) -> None:
        self._log(state.predict_timestamp.count(TimeUnit.BATCH), state, logger)

    def _log(self, batch: int, state: State, logger: Logger) -> None:
        # Independent of the loggers on this rank: the all-gather is a collective.
        if batch % self.batch_log_interval:
            return
        local = _host_metrics(self._psutil) | _gpu_metrics(state.device.torch_device)
        everyone = dist.all_gather_object(local)
        logger.enqueue(_by_rank(everyone) if self.log_all_data else _extremes(everyone))


def _host_metrics(psutil: Any) -> dict[str, float]:
    """Return the metrics of this host by name."""
    groups = {
        "cpu_memory": psutil.virtual_memory(),
        "disk_memory": psutil.disk_usage(os.sep),
        "network": psutil.net_io_counters(),  # None without a network
    }
    found = {"cpu_percentage": psutil.cpu_percent()}
    for group, values in groups.items():
        if values is not None:
            found |= {f"{group}_{name}": value for name, value in values._asdict().items()}
    return found


def _gpu_metrics(device: torch.device) -> dict[str, float]:
    """Return the metrics of the GPU that its driver reports, by name."""
    if device.type != "cuda":
        return {}
    readers = {
        "gpu_percentage": torch.cuda.utilization,
        "memory_percentage": torch.cuda.memory_usage,
        "gpu_temperature_C": torch.cuda.temperature,
        "gpu_power_usage_W": lambda device: torch.cuda.power_draw(device) / 1000,
    }
    found: dict[str, float] = {}
    for name, read in readers.items():
        try:
            found[name] = read(device)
        except Exception as error:
            # Drivers report less for MIG slices and some consumer GPUs; their errors share no base class.
            if "support" not in str(error).lower():
                raise
    return found


def _by_rank(everyone: list[dict[str, float]]) -> dict[str, float]:
    return {f"{name}_rank_{rank}": value for rank, found in enumerate(everyone) for name, value in found.items()}


def _extremes(everyone: list[dict[str, float]]) -> dict[str, float]:
    """Return the minimum and maximum of each metric, and the ranks that had them."""
    metrics: dict[str, float] = {}
    for name in dict.fromkeys(name for found in everyone for name in found):
        by_rank = [(found[name], rank) for rank, found in enumerate(everyone) if name in found]
        for extreme, (value, rank) in (("min", min(by_rank)), ("max", max(by_rank, key=lambda pair: pair[0]))):
            metrics[f"{extreme}_{name}"], metrics[f"{extreme}_{name}_rank"] = value, rank
    return metrics
