"""Every allocation of a training on a GPU, kept in a small file, and compared with the estimate without the GPU.

``python -m benchmarks.gpu.allocation_trace FILE`` estimates each configuration of a file that the checks ``limits`` and
``estimates`` wrote, and prints which sizes make the difference at the peaks.
"""

from __future__ import annotations

import argparse
import gc
import gzip
import json
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch

from benchmarks.environment import ROOT
from composer.memory.allocations import AllocationLog

__all__ = ["Trace", "differences", "read", "recorded", "write"]

_MAX_EVENTS = 200_000
_FRAMES = 2  # of each allocation, those outside of torch
_BACKWARD = "without Python frames, as in the backward pass"
_LIBRARIES = re.compile(r"/(torch|site-packages)/|^<|/_?lib/python")


@dataclass
class Trace:
    """What the caching allocator gave out in a run, in order, and its statistics.

    Attributes:
        sizes: Bytes that were requested, of each allocation.
        streams: The stream of each, numbered by first use.
        origins: Index into ``frames`` of each.
        frames: Where allocations were made: the innermost Python frames outside of libraries.
        events: ``i + 1`` where allocation ``i`` begins, ``-(i + 1)`` where it is released.
        statistics: Peaks and other figures in bytes, by name.

    >>> trace = Trace(sizes=[512], streams=[0], origins=[0], frames=["train.py:3 f"], events=[1, -1])
    >>> trace.peak()
    (512, 0)
    """

    sizes: list[int] = field(default_factory=list[int])
    streams: list[int] = field(default_factory=list[int])
    origins: list[int] = field(default_factory=list[int])
    frames: list[str] = field(default_factory=list[str])
    events: list[int] = field(default_factory=list[int])
    statistics: dict[str, int] = field(default_factory=dict[str, int])

    @classmethod
    def of(cls, entries: Iterable[Mapping[str, Any]]) -> Trace:
        """Return the trace of what ``torch.cuda.memory._snapshot`` lists for a device.

        Args:
            entries: Its entries; releases of what was allocated before the first are left out.
        """
        trace = cls()
        live: dict[int, int] = {}
        frames: dict[str, int] = {}
        streams: dict[Any, int] = {}
        for entry in entries:
            if entry["action"] == "alloc":
                live[entry["addr"]] = len(trace.sizes)
                trace.events.append(len(trace.sizes) + 1)
                trace.sizes.append(entry["size"])
                trace.streams.append(streams.setdefault(entry["stream"], len(streams)))
                trace.origins.append(frames.setdefault(_origin(entry.get("frames") or ()), len(frames)))
            elif entry["action"] == "free_requested" and entry["addr"] in live:
                trace.events.append(-live.pop(entry["addr"]) - 1)
        trace.frames = list(frames)
        return trace

    def peak(self) -> tuple[int, int]:
        """Return the largest number of bytes that are allocated at a time, and the event at which they are."""
        used = most = at = 0
        for number, event in enumerate(self.events):
            size = self.sizes[abs(event) - 1]
            used += size if event > 0 else -size
            if used > most:
                most, at = used, number
        return most, at

    def live(self, event: int) -> Iterator[int]:
        """Yield the allocations that are not released right after an event.

        Args:
            event: Index of the event.
        """
        found: dict[int, None] = {}
        for each in self.events[: event + 1]:
            if each > 0:
                found[each - 1] = None
            else:
                del found[-each - 1]
        yield from found


def recorded(train: Callable[[], object]) -> Trace:
    """Train twice on the GPU, and return what the second run allocates: libraries have their workspaces by then.

    Its statistics are the peaks of the allocated, requested and reserved bytes, the first two without what was there
    before, the workspaces, and what remains without them, which should be nothing.

    Args:
        train: Builds a model and trains it, and keeps nothing.
    """
    train()
    gc.collect()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    start, requested = torch.cuda.memory_allocated(), _requested("current")
    history = torch.cuda.memory._record_memory_history
    history("all", context="alloc", stacks="python", max_entries=_MAX_EVENTS)
    try:
        train()
        trace = Trace.of(torch.cuda.memory._snapshot()["device_traces"][torch.cuda.current_device()])
    finally:
        history(None)
    trace.statistics = {
        "allocated": torch.cuda.max_memory_allocated() - start,
        "requested": _requested("peak") - requested,
        "reserved": torch.cuda.max_memory_reserved(),
    }
    gc.collect()
    before = torch.cuda.memory_allocated()
    torch._C._cuda_clearCublasWorkspaces()
    left = torch.cuda.memory_allocated()
    torch.cuda.empty_cache()
    trace.statistics |= {"workspaces of cuBLAS": before - left, "left afterwards": left}
    return trace


def _requested(which: str) -> int:
    return torch.cuda.memory_stats()[f"requested_bytes.all.{which}"]


def _origin(frames: Sequence[Mapping[str, Any]]) -> str:
    """Return the innermost frames of the program and of composer, without the folders of the host."""
    own = [each for each in frames if not _LIBRARIES.search(each["filename"]) and each["filename"] != "??"]
    named = [f"{_short(each['filename'])}:{each['line']} {each['name']}" for each in own[:_FRAMES]]
    return " < ".join(named) or _BACKWARD


def _short(path: str) -> str:
    return path.removeprefix(f"{ROOT}/") if path.startswith(f"{ROOT}/") else "/".join(Path(path).parts[-2:])


def write(path: Path, traces: Mapping[str, Trace]) -> None:
    """Write traces as compressed JSON.

    Args:
        path: The file.
        traces: By configuration.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    content = json.dumps({name: asdict(trace) for name, trace in traces.items()}, separators=(",", ":"))
    path.write_bytes(gzip.compress(content.encode(), mtime=0))


def read(path: Path) -> dict[str, Trace]:
    """Return the traces of a file, by configuration.

    Args:
        path: What :func:`write` wrote.
    """
    return {name: Trace(**trace) for name, trace in json.loads(gzip.decompress(path.read_bytes())).items()}


def differences(trace: Trace, log: AllocationLog, most: int = 12) -> list[str]:
    """Return lines that explain the difference of the peaks: the sizes of which one has more bytes than the other.

    Each is taken at its own peak. The differences of all sizes together are that of the peaks.

    Args:
        trace: What was allocated.
        log: The estimate.
        most: The number of sizes to list, those with the largest difference first.

    >>> trace = Trace([4096, 512], [0, 0], [0, 0], ["train.py:3 f"], [1, 2])
    >>> log = AllocationLog()
    >>> log.add_temporary(512)
    >>> differences(trace, log)[1]
    '    +4,096 bytes  1 * 4,096 (estimated 0 *): train.py:3 f'
    """
    measured, event = trace.peak()
    estimated, at = log.peak()
    origins: defaultdict[int, Counter[str]] = defaultdict(Counter)
    counts: defaultdict[int, list[int]] = defaultdict(lambda: [0, 0])
    for index in trace.live(event):
        size = trace.sizes[index]
        counts[size][0] += 1
        origins[size][trace.frames[trace.origins[index]]] += 1
    expected: defaultdict[int, Counter[str]] = defaultdict(Counter)
    for each in log.live(at):
        counts[each.nbytes][1] += 1
        expected[each.nbytes][" ".join(filter(None, (each.role or each.stage, each.module)))] += 1
    lines = [f"peak: {measured:,} bytes measured, {estimated:,} estimated, {measured - estimated:+,}"]
    ordered = sorted(counts.items(), key=lambda item: -abs(item[0] * (item[1][0] - item[1][1])))
    for size, (there, here) in ordered[:most]:
        if there == here:
            break
        places = [name for name, _ in (origins if there > here else expected)[size].most_common(3)]
        head = f"{size * (there - here):+,}"
        lines.append(f"{head:>10} bytes  {there} * {size:,} (estimated {here} *): {'; '.join(places)}")
    return lines


def main() -> None:
    from benchmarks.estimate_memory import CONFIGURATIONS, logged
    from benchmarks.gpu.estimates import TIMES, scaled_arguments

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file", type=Path, help="what a check wrote: allocations-*.json.gz")
    parser.add_argument("--only", default="", help="configurations whose label holds this text")
    parser.add_argument("--most", type=int, default=12, help="number of sizes to list (12)")
    given = parser.parse_args()
    for label, trace in read(given.file).items():
        configuration = next((each for each in CONFIGURATIONS if each.label == label), None)
        if given.only not in label or configuration is None:
            continue
        arguments = scaled_arguments(configuration, TIMES)
        _, log = logged(lambda make=arguments: make("cpu"), cuda=True)
        print(label, *(f"{name}: {value:,}" for name, value in trace.statistics.items()), sep="\n  ")
        print("", *differences(trace, log, given.most), sep="\n  ", end="\n\n")


if __name__ == "__main__":
    main()
