"""``SystemProfiler``: record CPU, memory, disk and network usage as counters in a profiler trace."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

import torch

from composer._lazy import import_extra
from composer._numbers import positive
from composer.core.callback import Callback
from composer.devices import MEMORY_STATISTICS

if TYPE_CHECKING:
    from composer.core.logger import Logger
    from composer.core.state import State

__all__ = ["SystemProfiler"]

_GIGA: Final = 1e9
_MEGA: Final = 1e6


class SystemProfiler(Callback):
    """Records system usage while a :class:`.Profiler` is recording; created by its ``sys_prof`` arguments.

    A background thread samples every interval. The loop also samples at the start of a recorded batch if the last
    sample is older than that, so that short windows have a sample too:

    - ``cpu``: CPU utilization of the host since the last sample, in percent, and that of this process, in percent of
      one CPU;
    - ``memory``: memory and swap in use on the host, and memory of this process, in GB of 10^9 bytes; on CUDA also
      ``memory of the accelerator``, allocated by tensors and reserved;
    - ``disk`` and ``network``: read, write, send and receive throughput of the host since the last sample, in MB/s.

    Requires the extra ``system``. It does not synchronize with the accelerator.

    Args:
        profile_cpu: Whether to record CPU utilization.
        profile_memory: Whether to record memory usage.
        profile_disk: Whether to record disk reads and writes.
        profile_net: Whether to record network traffic.
        stats_thread_interval_seconds: Sampling interval, in seconds.

    Raises:
        MissingConditionalImportError: psutil is not installed.
        ValueError: The interval is not positive.

    >>> SystemProfiler(profile_memory=True).stats_thread_interval_seconds
    0.5
    """

    def __init__(
        self,
        profile_cpu: bool = True,
        profile_memory: bool = False,
        profile_disk: bool = False,
        profile_net: bool = False,
        stats_thread_interval_seconds: float = 0.5,
    ) -> None:
        self.profile_cpu = profile_cpu
        self.profile_memory = profile_memory
        self.profile_disk = profile_disk
        self.profile_net = profile_net
        self.stats_thread_interval_seconds = positive("stats_thread_interval_seconds", stats_thread_interval_seconds)
        self._psutil: Any = import_extra("psutil", "system", "A profiler with sys_prof_cpu and the like")
        self._thread: threading.Thread | None = None
        self._stop = threading.Event()
        self._reading = threading.Lock()
        self._next = 0.0

    def init(self, state: State, logger: Logger) -> None:
        """Start the thread."""
        self._end()
        psutil = self._psutil
        process = psutil.Process()
        readers: dict[str, Callable[[], dict[str, float]]] = {}
        if self.profile_cpu:
            readers["cpu"] = lambda: {"machine (%)": psutil.cpu_percent(), "process (%)": process.cpu_percent()}
            readers["cpu"]()  # the first call has nothing to compare with
        if self.profile_memory:
            readers["memory"] = lambda: _memory(psutil, process)
            if state.device.torch_device.type in MEMORY_STATISTICS:
                readers["memory of the accelerator"] = lambda: _device_memory(state.device.torch_device)
        if self.profile_disk:
            readers["disk"] = _Throughput(psutil.disk_io_counters, {"read": "read_bytes", "written": "write_bytes"})
        if self.profile_net:
            readers["network"] = _Throughput(psutil.net_io_counters, {"sent": "bytes_sent", "received": "bytes_recv"})
        self._markers = [(state.profiler.marker(name, categories=("system",)), read) for name, read in readers.items()]
        self._profiler = state.profiler
        self._stop.clear()
        self._thread = threading.Thread(target=self._watch, name="SystemProfiler", daemon=True)
        self._thread.start()

    def batch_start(self, state: State, logger: Logger) -> None:
        """Take a sample if one is due."""
        if time.perf_counter() >= self._next:
            self._read()

    def close(self, state: State, logger: Logger) -> None:
        """Stop the thread."""
        self._end()

    def _watch(self) -> None:
        while not self._stop.wait(self.stats_thread_interval_seconds):
            self._read()

    def _read(self) -> None:
        if not self._profiler.is_recording:
            return
        with self._reading:  # throughput is since the last sample, from either thread
            self._next = time.perf_counter() + self.stats_thread_interval_seconds
            for marker, read in self._markers:
                values = read()
                if values:
                    marker.counter(values)

    def _end(self) -> None:
        self._stop.set()
        if self._thread is not None:
            self._thread.join()
            self._thread = None


class _Throughput:
    """Converts byte counters to throughput since the last call, in MB/s."""

    def __init__(self, count: Callable[[], Any], names: dict[str, str]) -> None:
        self._count, self._names = count, names
        self._last = self._now()

    def __call__(self) -> dict[str, float]:
        last, self._last = self._last, self._now()
        seconds = self._last[0] - last[0]
        if seconds <= 0 or not self._last[1]:
            return {}
        return {f"{name} (MB/s)": (self._last[1][name] - last[1][name]) / seconds / _MEGA for name in last[1]}

    def _now(self) -> tuple[float, dict[str, int]]:
        counts = self._count()  # None without a disk or network
        found = {} if counts is None else {name: getattr(counts, field) for name, field in self._names.items()}
        return time.perf_counter(), found


def _memory(psutil: Any, process: Any) -> dict[str, float]:
    return {
        "machine (GB)": psutil.virtual_memory().used / _GIGA,
        "swap (GB)": psutil.swap_memory().used / _GIGA,
        "process (GB)": process.memory_info().rss / _GIGA,
    }


def _device_memory(device: torch.device) -> dict[str, float]:
    return {
        "allocated (GB)": torch.accelerator.memory_allocated(device) / _GIGA,
        "reserved (GB)": torch.accelerator.memory_reserved(device) / _GIGA,
    }
