"""A fake CUDA memory history, for hosts without CUDA."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from composer.core import LoggerDestination

FRAMES = [{"filename": "train.py", "line": 7, "name": "forward"}, {"filename": "train.py", "line": 1, "name": "main"}]
SNAPSHOT: dict[str, Any] = {
    "segments": [
        {
            "device": 0,
            "address": 4096,
            "total_size": 2048,
            "allocated_size": 1024,
            "active_size": 1024,
            "stream": 0,
            "segment_type": "small",
            "segment_pool_id": (0, 0),
            "is_expandable": False,
            "frames": FRAMES,
            "blocks": [
                {"address": 4096, "size": 1024, "requested_size": 1000, "state": "active_allocated", "frames": FRAMES},
                {"address": 5120, "size": 1024, "requested_size": 0, "state": "inactive", "frames": []},
            ],
        }
    ],
    "device_traces": [[{"action": "alloc", "addr": 4096, "size": 1000, "stream": 0, "frames": FRAMES, "time_us": 1}]],
    "allocator_settings": {},
    "external_annotations": [],
}


class History:
    """Calls to the allocator: ``("record", n)`` and ``("stop", None)``."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, int | None]] = []
        self.observers: list[Any] = []

    def record(self, enabled: str | None = "all", max_entries: int | None = None) -> None:
        self.calls.append(("record" if enabled else "stop", max_entries))


@pytest.fixture
def history(monkeypatch) -> History:
    """Make runs on the CPU look like runs on a device with a memory history."""
    history = History()
    monkeypatch.setattr(torch.cuda.memory, "_record_memory_history", history.record)
    monkeypatch.setattr(torch.cuda.memory, "_snapshot", lambda: SNAPSHOT)
    monkeypatch.setattr(torch._C, "_cuda_attach_out_of_memory_observer", history.observers.append, raising=False)
    for module in ("memory_snapshot", "oom_observer"):
        monkeypatch.setattr(f"composer.callbacks.{module}.has_cuda_memory", lambda state: True)
    return history


class Keeper(LoggerDestination):
    """Stores names of uploaded files."""

    def __init__(self) -> None:
        self.files: list[tuple[str, bool]] = []

    def can_upload_files(self) -> bool:
        return True

    def upload_file(self, state, remote_file_name, file_path, *, overwrite):
        assert file_path.exists()
        self.files.append((remote_file_name, overwrite))
