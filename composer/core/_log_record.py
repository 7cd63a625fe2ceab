"""What was logged at one moment, on its way to the destinations."""

from __future__ import annotations

import copy
from collections import defaultdict
from collections.abc import Container, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from composer import trees

if TYPE_CHECKING:
    from composer.core.timestamp import Timestamp


class Entry:
    """What was logged at one moment; shared by all queues, so that its tensors are read once."""

    __slots__ = ("as_numbers", "metrics", "pending", "step", "timestamp")

    def __init__(self, metrics: dict[str, Any], step: int, timestamp: Timestamp, as_numbers: bool) -> None:
        self.metrics = metrics
        self.step = step
        self.timestamp = timestamp
        self.as_numbers = as_numbers
        self.pending = True


def snapshot(value: Any) -> Any:
    """What a value is now, since the caller may change it before anyone reads it."""
    if isinstance(value, Tensor):
        return value.detach().clone()
    if isinstance(value, (list, tuple, dict)):
        return copy.deepcopy(trees.map_tensors(Tensor.detach, value))
    return value.copy() if isinstance(value, np.ndarray) else value


def read(entries: Sequence[Entry], losses: Container[str] = ()) -> int | None:
    """Copy the tensors of entries to the host: one transfer for each device and dtype.

    A tensor of one element becomes a number in entries that ask for numbers, and stays a tensor of its shape in others.

    Returns:
        The first step at which one of ``losses`` is NaN, or None.
    """
    nan_since: int | None = None
    groups: dict[tuple[torch.device, torch.dtype, bool], list[tuple[Entry, str, Tensor]]] = defaultdict(list)
    for entry in entries:
        if entry.pending:
            entry.pending = False
            for name, value in entry.metrics.items():
                if isinstance(value, Tensor) and value.numel() == 1:
                    groups[value.device, value.dtype, entry.as_numbers].append((entry, name, value))
                elif isinstance(value, (Tensor, list, tuple, dict)):
                    entry.metrics[name] = trees.map_tensors(_to_host, value)
    for (_, _, as_numbers), values in groups.items():
        together = torch.stack([value.detach().reshape(()) for _, _, value in values])
        if not as_numbers:
            for (entry, name, value), element in zip(values, together.cpu(), strict=True):
                # A copy, since a view would keep all of them in memory, and in a file where it is saved.
                entry.metrics[name] = element.reshape(value.shape).clone()
            continue
        for (entry, name, _), number in zip(values, together.tolist(), strict=True):
            entry.metrics[name] = number
            if number != number and name in losses and (nan_since is None or entry.step < nan_since):
                nan_since = entry.step
    return nan_since


def _to_host(tensor: Tensor) -> Tensor:
    """A copy, since a metric may go on counting in the tensor that it returned."""
    return tensor.detach().to("cpu", copy=True)
