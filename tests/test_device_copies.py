"""Copies between host and devices: which ones may be non-blocking."""

from __future__ import annotations

import ast
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

import composer
from composer import devices
from composer._device_copies import copied_to, is_non_blocking_safe
from composer.datasets import DevicePrefetcher

# They copy to the host, into memory that they keep, and wait for an event of the device or for the device.
_TO_THE_HOST = {"callbacks/_async_readback.py", "checkpoint/staging.py"}


@pytest.mark.parametrize(
    ("kind", "pinned", "goes_on"),
    [
        ("cuda", False, True),
        ("cuda", True, True),
        ("xpu", False, False),
        ("xpu", True, True),
        ("mps", False, False),
        ("mtia", False, False),
        ("hpu", False, False),
        ("hpu", True, True),
        ("xla", False, False),
        ("meta", False, False),
        ("privateuseone", False, False),
        ("privateuseone", True, True),
        ("cpu", False, False),
    ],
)
def test_host_continues_once_its_memory_has_been_read(kind, pinned, goes_on, monkeypatch) -> None:
    asked = []
    tensor = SimpleNamespace(
        is_pinned=lambda: pinned,
        dtype=torch.float32,
        to=lambda device, dtype=None, non_blocking=False: asked.append(non_blocking),
    )
    assert is_non_blocking_safe(tensor, torch.device(kind)) is goes_on
    copied_to(tensor, torch.device(kind))
    assert asked.pop() is goes_on
    if kind != "cpu":
        accelerator = devices.DeviceAccelerator.__new__(devices.DeviceAccelerator)
        accelerator.torch_device = torch.device(kind)
        accelerator.tensor_to_device(tensor)
        assert asked.pop() is goes_on


@pytest.mark.parametrize(("kind", "goes_on"), [("cpu", False), ("mps", False), ("xpu", False), ("cuda", True)])
def test_returned_batches_are_complete(kind, goes_on, monkeypatch) -> None:
    asked = []

    def to(tensor, device, dtype=None, non_blocking=False):
        asked.append(non_blocking)
        return tensor

    monkeypatch.setattr(torch.Tensor, "to", to)
    prefetcher = DevicePrefetcher([torch.ones(2)], kind)
    prefetcher._move(torch.ones(2))
    assert asked == [goes_on]


def test_no_unsynchronized_non_blocking_copies() -> None:
    root = Path(composer.__file__).parent
    found = {
        path.relative_to(root).as_posix()
        for path in root.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.keyword) and node.arg == "non_blocking" and getattr(node.value, "value", None) is True
    }
    assert found == _TO_THE_HOST
