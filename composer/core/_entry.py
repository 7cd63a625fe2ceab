"""What was logged at one moment, on its way to the destinations."""

from __future__ import annotations

import copy
from collections import defaultdict
from collections.abc import Container, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

if TYPE_CHECKING:
    from composer.core.timestamp import Timestamp


class Entry:
    """What was logged at one moment; shared by all queues, so that its tensors are read once."""

    __slots__ = ("metrics", "pending", "step", "timestamp")

    def __init__(self, metrics: dict[str, Any], step: int, timestamp: Timestamp) -> None:
        self.metrics = metrics
        self.step = step
        self.timestamp = timestamp
        self.pending = True


def snapshot(value: Any) -> Any:
    """What a value is now, since the caller may change it before anyone reads it."""
    if isinstance(value, Tensor):
        return value.detach().clone()
    if isinstance(value, np.generic):
        return value.item()
    return copy.deepcopy(value) if isinstance(value, (list, dict, np.ndarray)) else value


def read(entries: Sequence[Entry], losses: Container[str] = ()) -> int | None:
    """Replace the one-element tensors of entries by numbers: one transfer for each device and dtype.

    Returns:
        The first step at which one of ``losses`` is NaN, or None.
    """
    nan_since: int | None = None
    groups: dict[tuple[torch.device, torch.dtype], list[tuple[Entry, str, Tensor]]] = defaultdict(list)
    for entry in entries:
        if entry.pending:
            entry.pending = False
            for name, value in entry.metrics.items():
                if isinstance(value, Tensor) and value.numel() == 1:
                    groups[value.device, value.dtype].append((entry, name, value))
    for values in groups.values():
        numbers = torch.stack([value.reshape(()) for _, _, value in values]).tolist()
        for (entry, name, _), number in zip(values, numbers, strict=True):
            entry.metrics[name] = number
            if number != number and name in losses and (nan_since is None or entry.step < nan_since):
                nan_since = entry.step
    return nan_since
