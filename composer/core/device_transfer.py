"""Copies of batches to a device, beside what the device is computing."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from composer import trees
from composer.core.types import Batch
from composer.devices import SIDE_STREAMS

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
    """Begin to copy a batch; on CUDA on a stream of its own, if all of it that moves are dense tensors of the host.

    The allocator has to be told of every tensor that one stream makes and another uses. It can be told of dense
    tensors; sparse and nested ones, and objects with a ``to`` of their own, such as packed sequences and graphs, are
    copied on the current stream.

    Args:
        batch: The batch; its copies run beside other work only if it lies in pinned memory.
        device: Where to.
        move: Returns the batch on that device.

    >>> send(torch.ones(1), torch.device("cpu"), lambda batch: batch.to("cpu")).receive()
    tensor([1.])
    """
    if device.type not in SIDE_STREAMS or not all(_can_go_beside(leaf) for leaf in trees.leaves(batch)):
        return Sent(move(batch), device)
    side = _side_stream(device)
    with torch.cuda.stream(side):
        return Sent(move(batch), device, side.record_event(torch.cuda.Event()))


def _can_go_beside(leaf: Any) -> bool:
    """Whether a part of a batch stays where it is, or is a tensor that one stream may copy and another one use."""
    if isinstance(leaf, torch.Tensor):
        is_plain = type(leaf) in (torch.Tensor, nn.Parameter) and leaf.layout == torch.strided and not leaf.is_nested
        # What is on a device already was made on a stream that the side stream does not wait for.
        return is_plain and leaf.is_cpu
    return isinstance(leaf, type) or not callable(getattr(leaf, "to", None))


@functools.cache
def _side_stream(device: torch.device) -> torch.cuda.Stream:
    return torch.cuda.Stream(device)
