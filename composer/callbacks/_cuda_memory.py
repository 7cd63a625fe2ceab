"""Record the history of CUDA's memory allocator, and write snapshots and plots of it."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from weakref import WeakKeyDictionary

import torch

from composer.callbacks._flamegraph import render_flamegraph

if TYPE_CHECKING:
    from composer.core.callback import Callback
    from composer.core.state import State

__all__ = ["WRITERS", "has_cuda_memory", "record_history", "stop_recording", "take_snapshot"]


def has_cuda_memory(state: State) -> bool:
    """Return whether the run is on a device whose allocator records a history.

    Args:
        state: The state of the run.

    >>> from composer import State
    >>> has_cuda_memory(State(model=torch.nn.Linear(1, 1), device="cpu"))
    False
    """
    return state.device.torch_device.type == "cuda"


# The callbacks that record, with the number of events that each requires: the allocator has a single history.
_recording: WeakKeyDictionary[Callback, int] = WeakKeyDictionary()


def record_history(owner: Callback, max_entries: int) -> None:
    """Start recording allocations and frees with their stack traces.

    Args:
        owner: The callback that records; others may record at the same time.
        max_entries: Maximum number of events to keep; with several callbacks, the largest of their values applies.
    """
    _recording[owner] = max_entries
    torch.cuda.memory._record_memory_history(max_entries=max(_recording.values()))


def stop_recording(owner: Callback) -> None:
    """Stop recording and clear the history, unless another callback records.

    Args:
        owner: The callback that called :func:`record_history`.
    """
    del _recording[owner]
    if not _recording:
        torch.cuda.memory._record_memory_history(enabled=None)


def take_snapshot() -> dict[str, Any]:
    """Return a snapshot of allocated memory and the recorded history."""
    snapshot: Any = torch.cuda.memory._snapshot()  # a typed dict in newer versions of torch
    return snapshot


def _write_pickle(snapshot: dict[str, Any], path: Path) -> None:
    with path.open("wb") as file:
        pickle.dump(snapshot, file)


def _write_trace(snapshot: dict[str, Any], path: Path) -> None:
    from torch.cuda._memory_viz import trace_plot

    path.write_text(trace_plot(snapshot))


def _write_segments(snapshot: dict[str, Any], path: Path) -> None:
    from torch.cuda._memory_viz import segment_plot

    path.write_text(segment_plot(snapshot))


def _write_segment_flamegraph(snapshot: dict[str, Any], path: Path) -> None:
    from torch.cuda._memory_viz import segments

    # torch's own renderer downloads a script from the network.
    path.write_text(segments(snapshot, format_flamegraph=render_flamegraph))


def _write_memory_flamegraph(snapshot: dict[str, Any], path: Path) -> None:
    from torch.cuda._memory_viz import memory

    path.write_text(memory(snapshot, format_flamegraph=render_flamegraph))


WRITERS: Final[Mapping[str, Callable[[dict[str, Any], Path], None]]] = {
    "snapshot.pickle": _write_pickle,
    "trace_plot.html": _write_trace,
    "segment_plot.html": _write_segments,
    "segment_flamegraph.svg": _write_segment_flamegraph,
    "memory_flamegraph.svg": _write_memory_flamegraph,
}
"""Functions that write a snapshot, by the ending of the file."""
