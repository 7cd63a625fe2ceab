"""Copies of batches to a device, beside what the device is computing."""

from __future__ import annotations

import functools
from collections.abc import Callable

import torch

from composer import trees
from composer.core.types import Batch

__all__ = ["Sent", "send"]


class Sent:
    """A batch on its way to a device.

    Args:
        batch: What is being copied.
        device: Where to.
        arrived: When all of it is there; None where it is there already.

    >>> Sent([torch.ones(1)], torch.device("cpu")).receive()
    [tensor([1.])]
    """

    def __init__(self, batch: Batch, device: torch.device, arrived: torch.Event | None = None) -> None:
        self._batch, self._device, self._arrived = batch, device, arrived

    def receive(self) -> Batch:
        """Return the batch for use on the current stream, which waits for it; the host does not."""
        if self._arrived is None:
            return self._batch
        current = torch.cuda.current_stream(self._device)
        current.wait_event(self._arrived)
        for leaf in trees.leaves(self._batch):
            if isinstance(leaf, torch.Tensor) and leaf.is_cuda:
                # Its memory is that of the other stream, which may not use it again before this one has.
                leaf.record_stream(current)
        return self._batch


def send(batch: Batch, device: torch.device, move: Callable[[Batch], Batch]) -> Sent:
    """Begin to copy a batch; on CUDA on a stream of its own.

    Args:
        batch: The batch; its copies run beside other work only if it lies in pinned memory.
        device: Where to.
        move: Returns the batch on that device.

    >>> send(torch.ones(1), torch.device("cpu"), lambda batch: batch.to("cpu")).receive()
    tensor([1.])
    """
    if device.type != "cuda":
        return Sent(move(batch), device)
    side = _side_stream(device)
    with torch.cuda.stream(side):
        return Sent(move(batch), device, side.record_event(torch.cuda.Event()))


@functools.cache
def _side_stream(device: torch.device) -> torch.cuda.Stream:
    return torch.cuda.Stream(device)
