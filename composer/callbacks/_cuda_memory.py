"""What CUDA's allocator can tell: the history of its blocks, and pictures of it."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from weakref import WeakKeyDictionary

import torch

from composer.callbacks._flamegraph import draw_flamegraph

if TYPE_CHECKING:
    from composer.core.callback import Callback
    from composer.core.state import State

__all__ = ["WRITERS", "has_cuda_memory", "record_history", "stop_recording", "take_snapshot"]


def has_cuda_memory(state: State) -> bool:
    """Return whether the run is on a device whose allocator keeps a history.

    Args:
        state: The state of the run.

    >>> from composer import State
    >>> has_cuda_memory(State(model=torch.nn.Linear(1, 1), device="cpu"))
    False
    """
    return state.device.torch_device.type == "cuda"


# Who records, with the number of events that each wants: the allocator has one history for all.
_recording: WeakKeyDictionary[Callback, int] = WeakKeyDictionary()


def record_history(owner: Callback, max_entries: int) -> None:
    """Begin to record what is allocated and freed, and where in the code.

    Args:
        owner: Who wants to know; others may record at the same time.
        max_entries: Number of events to keep, the newest; where several record, the most that any of them wants.
    """
    _recording[owner] = max_entries
    torch.cuda.memory._record_memory_history(max_entries=max(_recording.values()))


def stop_recording(owner: Callback) -> None:
    """Record no longer, and forget, unless somebody else records.

    Args:
        owner: Who has called :func:`record_history`.
    """
    del _recording[owner]
    if not _recording:
        torch.cuda.memory._record_memory_history(enabled=None)


def take_snapshot() -> dict[str, Any]:
    """Return what is allocated, and what was recorded."""
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

    # torch's own drawing fetches a script from the network.
    path.write_text(segments(snapshot, format_flamegraph=draw_flamegraph))


def _write_memory_flamegraph(snapshot: dict[str, Any], path: Path) -> None:
    from torch.cuda._memory_viz import memory

    path.write_text(memory(snapshot, format_flamegraph=draw_flamegraph))


WRITERS: Final[Mapping[str, Callable[[dict[str, Any], Path], None]]] = {
    "snapshot.pickle": _write_pickle,
    "trace_plot.html": _write_trace,
    "segment_plot.html": _write_segments,
    "segment_flamegraph.svg": _write_segment_flamegraph,
    "memory_flamegraph.svg": _write_memory_flamegraph,
}
"""What writes a snapshot, by the kind of file."""
