"""SystemMetricsMonitor: what processor, memory, disk, network and accelerator of each process's machine are doing."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import torch

from composer import dist
from composer._lazy import import_extra
from composer._text import positive
from composer.core.callback import Callback
from composer.core.time import TimeUnit

if TYPE_CHECKING:
    from composer.core.logger import Logger
    from composer.core.state import State

__all__ = ["SystemMetricsMonitor"]

_PURPOSE = "SystemMetricsMonitor"


class SystemMetricsMonitor(Callback):
    """Logs the load of the machines that the processes run on, in training, evaluation and prediction.

    - ``cpu_percentage``: share of the processor's time in use since the last point, in percent;
    - ``cpu_memory_{total,available,used,free,percent,...}``: main memory, in bytes and percent;
    - ``disk_memory_{total,used,free,percent}``: the disk that holds the root directory;
    - ``network_{bytes_sent,bytes_recv,...}``: counts since the machine started;
    - on a GPU also ``gpu_percentage`` and ``memory_percentage``, the share of time in which it computed and in which
      it moved memory, ``gpu_temperature_C`` and ``gpu_power_usage_W``, as far as the driver tells them.

    Each appears as ``min_{name}`` and ``max_{name}``, over the processes, with ``min_{name}_rank`` and
    ``max_{name}_rank`` telling which process had them; or as ``{name}_rank_{number}`` of every process.

    Needs the extra ``system``. Reading the figures takes some tenths of a millisecond of the host, and on a GPU some
    milliseconds; no work of the device is waited for.

    Args:
        log_all_data: Whether to log the figures of every process, instead of the least and the most.
        batch_log_interval: Number of batches between two points of the curves.

    Raises:
        MissingConditionalImportError: psutil is not installed; on an NVIDIA GPU, nvidia-ml-py.
        TypeError: ``batch_log_interval`` is not a number.
        ValueError: It is not positive.

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
        self.batch_log_interval = positive("batch_log_interval", batch_log_interval)
        self._psutil: Any = import_extra("psutil", "system", _PURPOSE)

    def init(self, state: State, logger: Logger) -> None:
        self._psutil.cpu_percent()  # the first call has nothing to compare with
        if state.device.torch_device.type == "cuda" and torch.version.hip is None:
            import_extra("pynvml", "system", f"{_PURPOSE} on an NVIDIA GPU")

    def batch_start(self, state: State, logger: Logger) -> None:
        self._log(state.timestamp.count(TimeUnit.BATCH), state, logger)

    def eval_batch_start(self, state: State, logger: Logger) -> None:
        self._log(state.eval_timestamp.count(TimeUnit.BATCH), state, logger)

    def predict_batch_start(self, state: State, logger: Logger) -> None:
        self._log(state.predict_timestamp.count(TimeUnit.BATCH), state, logger)

    def _log(self, batch: int, state: State, logger: Logger) -> None:
        # Not by who has loggers: all processes have to take part or none.
        if batch % self.batch_log_interval:
            return
        mine = _of_machine(self._psutil) | _of_gpu(state.device.torch_device)
        everyone = dist.all_gather_object(mine)
        logger.enqueue(_every_one(everyone) if self.log_all_data else _extremes(everyone))


def _of_machine(psutil: Any) -> dict[str, float]:
    """Return the figures of the machine by name."""
    groups = {
        "cpu_memory": psutil.virtual_memory(),
        "disk_memory": psutil.disk_usage(os.sep),
        "network": psutil.net_io_counters(),  # None where there is no network
    }
    found = {"cpu_percentage": psutil.cpu_percent()}
    for group, values in groups.items():
        if values is not None:
            found |= {f"{group}_{name}": value for name, value in values._asdict().items()}
    return found


def _of_gpu(device: torch.device) -> dict[str, float]:
    """Return the figures of the GPU by name, as far as the driver tells them."""
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
            # Drivers tell less of parts of a GPU and of some consumer models; their errors share no base class.
            if "support" not in str(error).lower():
                raise
    return found


def _every_one(everyone: list[dict[str, float]]) -> dict[str, float]:
    return {f"{name}_rank_{rank}": value for rank, found in enumerate(everyone) for name, value in found.items()}


def _extremes(everyone: list[dict[str, float]]) -> dict[str, float]:
    """Return the least and the most of each figure, and which process had them."""
    metrics: dict[str, float] = {}
    for name in dict.fromkeys(name for found in everyone for name in found):
        by_rank = [(found[name], rank) for rank, found in enumerate(everyone) if name in found]
        for kind, (value, rank) in (("min", min(by_rank)), ("max", max(by_rank, key=lambda pair: pair[0]))):
            metrics[f"{kind}_{name}"], metrics[f"{kind}_{name}_rank"] = value, rank
    return metrics
