"""Peak memory of a process: that of torch's allocator on an accelerator, or else the resident memory."""

from __future__ import annotations

import torch

from composer._resident_memory import resident_peak

__all__ = ["peak_memory", "reset_peak_memory"]


def reset_peak_memory(device: torch.device) -> None:
    """Begin to measure; what the host has used so far stays part of its peak.

    Args:
        device: The device.

    >>> reset_peak_memory(torch.device("cpu"))
    """
    if device.type not in ("cpu", "meta"):
        module = torch.get_device_module(device)
        if hasattr(module, "reset_peak_memory_stats"):
            module.reset_peak_memory_stats()


def peak_memory(device: torch.device) -> int:
    """Return the peak in bytes; 0 if it is not known.

    Args:
        device: The device.

    >>> peak_memory(torch.device("cpu")) > 2**20
    True
    """
    if device.type not in ("cpu", "meta"):
        module = torch.get_device_module(device)
        return module.max_memory_allocated() if hasattr(module, "max_memory_allocated") else 0
    return resident_peak()
