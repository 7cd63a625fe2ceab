"""SystemProfiler: curves of the machine's load beside the spans."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

import torch

from composer._lazy import import_extra
from composer._text import positive
from composer.core.callback import Callback
from composer.devices import MEMORY_STATISTICS

if TYPE_CHECKING:
    from composer.core.logger import Logger
    from composer.core.state import State

__all__ = ["SystemProfiler"]

_GIGA: Final = 1e9
_MEGA: Final = 1e6


class SystemProfiler(Callback):
    """Records the load of the machine while a :class:`.Profiler` records; made by its ``sys_prof`` arguments.

    A thread reads the figures every interval; the loop does where a recorded batch begins longer than that after the
    last point, so that short windows have one too:

    - ``cpu``: share of the machine's processors in use since the last point, in percent, and that of this process,
      in percent of one processor;
    - ``memory``: main memory and swap in use on the machine, and main memory of this process, in GB of 10^9 bytes;
      on CUDA ``memory of the accelerator`` too, as allocated by tensors and as reserved;
    - ``disk`` and ``network``: read, written, sent and received on the machine since the last point, in MB a second.

    Needs the extra ``system``. No work of an accelerator is waited for.

    Args:
        profile_cpu: Whether to record the load of the processors.
        profile_memory: Whether to record the memory in use.
        profile_disk: Whether to record what is read from and written to disks.
        profile_net: Whether to record what is sent and received.
        stats_thread_interval_seconds: Time between two points, in seconds.

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
        """Read the figures if that is due."""
        if time.perf_counter() >= self._next:
            self._read()

    def close(self, state: State, logger: Logger) -> None:
        """End the thread."""
        self._end()

    def _watch(self) -> None:
        while not self._stop.wait(self.stats_thread_interval_seconds):
            self._read()

    def _read(self) -> None:
        if not self._profiler.is_recording:
            return
        with self._reading:  # rates are since the last point, whoever took it
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
    """Turns counts of bytes into megabytes a second since the last call."""

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
        counts = self._count()  # None where there is no disk or network
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
