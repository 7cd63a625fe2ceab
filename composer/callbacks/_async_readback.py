"""Copy scalars from the device to the host asynchronously, without a synchronization."""

from __future__ import annotations

from collections import deque
from typing import Any

import torch
from torch import Tensor

from composer.devices import PINNING

__all__ = ["Readback"]


class Readback:
    """Copies scalars to the host asynchronously, and returns each once its copy is complete.

    The host runs ahead of the device, so a value is available some steps later; :meth:`arrived` does not wait by
    default. Values on the CPU are available at once.

    >>> readback = Readback()
    >>> readback.put("step 1", torch.tensor(True))
    >>> readback.arrived()
    [('step 1', True)]
    """

    def __init__(self) -> None:
        self._pending: deque[tuple[Any, Tensor, torch.Event | None]] = deque()

    def put(self, label: Any, value: Tensor) -> None:
        """Start copying a value.

        Args:
            label: Returned with the value.
            value: A tensor of one element, which must not be modified.
        """
        if value.device.type == "cpu":
            self._pending.append((label, value, None))
            return
        # From these devices, only copies into pinned memory are asynchronous.
        host = torch.empty((), dtype=value.dtype, pin_memory=value.device.type in PINNING)
        host.copy_(value.reshape(()), non_blocking=True)
        done = torch.Event(value.device)
        done.record()
        self._pending.append((label, host, done))

    def arrived(self, wait: bool = False) -> list[tuple[Any, bool | int | float]]:
        """Return the labels and values of completed copies, in the order in which they were put in.

        Args:
            wait: Whether to wait for all pending copies.
        """
        found: list[tuple[Any, bool | int | float]] = []
        while self._pending:
            label, host, done = self._pending[0]
            if done is not None and not done.query():
                if not wait:
                    break
                done.synchronize()
            self._pending.popleft()
            found.append((label, host.item()))
        return found
