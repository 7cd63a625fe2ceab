"""Measure peak and final allocated memory in each section of a run, on GPU and CPU."""

from __future__ import annotations

import gc
from dataclasses import dataclass
from types import TracebackType
from typing import Self

import torch
from torch.autograd import DeviceType

_MARK = "benchmarks.allocations: mark "


@dataclass(frozen=True)
class Stretch:
    """Memory between two marks, in bytes relative to the start of the measurement.

    Attributes:
        peak: Peak allocated memory.
        end: Allocated memory at the end.
        reserved: Peak memory reserved by the allocator, absolute; 0 on the CPU, whose allocator has no cache.
    """

    peak: int
    end: int
    reserved: int = 0


class Allocations:
    """Count exactly the bytes of tensors and workspaces that torch allocates in a context.

    On a GPU, these are the statistics of the caching allocator. On the CPU, torch's profiler records each allocation,
    including those of kernels and of the backward pass; memory that was allocated before is not counted there, nor when
    it is freed.

    >>> with Allocations("cpu") as allocations:
    ...     kept = torch.empty(1000, dtype=torch.uint8)
    ...     _ = torch.empty(5000, dtype=torch.uint8)
    ...     del _
    ...     allocations.mark("first")
    ...     del kept
    >>> allocations["first"]
    Stretch(peak=6000, end=1000, reserved=0)

    Args:
        device: "cpu" or "cuda".
    """

    def __init__(self, device: str) -> None:
        self._counter = _OfCuda() if device == "cuda" else _OfCpu()
        self._names: list[str] = []
        self._stretches: list[Stretch] = []

    def mark(self, name: str) -> None:
        """End a stretch.

        Args:
            name: What to call it; one of the same name before is added to.
        """
        self._names.append(name)
        self._counter.mark()

    def __enter__(self) -> Self:
        gc.collect()
        self._counter.begin()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.mark("")
        self._stretches = self._counter.end()

    def __getitem__(self, name: str) -> Stretch:
        """Return the stretch of this name: of several the greatest peak, and the end of the last."""
        found = self.all(name)
        if not found:
            raise KeyError(name)
        return Stretch(max(each.peak for each in found), found[-1].end, max(each.reserved for each in found))

    def all(self, name: str) -> list[Stretch]:
        """Return the stretches of this name, in order.

        Args:
            name: As it was marked.
        """
        return [each for which, each in zip(self._names, self._stretches, strict=True) if which == name]

    @property
    def whole(self) -> Stretch:
        """The whole block."""
        most = max(each.peak for each in self._stretches)
        return Stretch(most, self._stretches[-1].end, max(each.reserved for each in self._stretches))


class _OfCuda:
    """The counts of the caching allocator, which are the host's: there is nothing to wait for."""

    def begin(self) -> None:
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        self._start = torch.cuda.memory_allocated()
        self._found: list[Stretch] = []
        torch.cuda.reset_peak_memory_stats()

    def mark(self) -> None:
        peak, now = torch.cuda.max_memory_allocated(), torch.cuda.memory_allocated()
        self._found.append(Stretch(peak - self._start, now - self._start, torch.cuda.max_memory_reserved()))
        torch.cuda.reset_peak_memory_stats()

    def end(self) -> list[Stretch]:
        return self._found


class _OfCpu:
    """Each allocation as the profiler notes it, added up afterwards."""

    def begin(self) -> None:
        self._profile = torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True)
        self._profile.__enter__()

    def mark(self) -> None:
        with torch.profiler.record_function(_MARK):
            pass

    def end(self) -> list[Stretch]:
        self._profile.__exit__(None, None, None)
        assert self._profile.profiler is not None
        events = self._profile.profiler.kineto_results.events()
        del self._profile
        live = most = 0
        found: list[Stretch] = []
        for event in sorted(events, key=lambda event: event.start_ns()):
            if event.name() == "[memory]" and event.device_type() == DeviceType.CPU:
                live += event.nbytes()
                most = max(most, live)
            elif event.name() == _MARK:
                found.append(Stretch(most, live))
                most = live
        return found
