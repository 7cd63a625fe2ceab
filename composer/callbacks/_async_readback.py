"""Reading values from the device without waiting for it."""

from __future__ import annotations

from collections import deque
from typing import Any

import torch
from torch import Tensor

from composer.devices import PINNING

__all__ = ["Readback"]


class Readback:
    """Copies scalars to the host beside the work of the device, and gives each once it has arrived.

    The host runs ahead of the device, so a value is there some steps later; asking for what has arrived waits for
    nothing. What lies on the CPU has arrived when it is put in.

    >>> readback = Readback()
    >>> readback.put("step 1", torch.tensor(True))
    >>> readback.arrived()
    [('step 1', True)]
    """

    def __init__(self) -> None:
        self._pending: deque[tuple[Any, Tensor, torch.Event | None]] = deque()

    def put(self, label: Any, value: Tensor) -> None:
        """Begin to copy a value.

        Args:
            label: What to give it back with.
            value: A tensor of one element, which nobody changes.
        """
        if value.device.type == "cpu":
            self._pending.append((label, value, None))
            return
        # From these only into pinned memory does the copy run beside the host.
        host = torch.empty((), dtype=value.dtype, pin_memory=value.device.type in PINNING)
        host.copy_(value.reshape(()), non_blocking=True)
        done = torch.Event(value.device)
        done.record()
        self._pending.append((label, host, done))

    def arrived(self, wait: bool = False) -> list[tuple[Any, bool | int | float]]:
        """Return labels and values that have come, in the order in which they were put in.

        Args:
            wait: Whether to wait for all that are under way.
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
