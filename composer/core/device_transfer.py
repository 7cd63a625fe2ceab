"""Copy batches to a device asynchronously, on a side CUDA stream that overlaps with computation."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from composer import trees
from composer.core.types import Batch
from composer.devices import SIDE_STREAMS

__all__ = ["Transfer", "start_transfer"]


class Transfer:
    """A batch that is being copied to a device.

    Args:
        batch: The batch on the device.
        device: The device.
        done: An event that completes with the copy; None if the copy is on the current stream.

    >>> Transfer([torch.ones(1)], torch.device("cpu")).wait()
    [tensor([1.])]
    """

    def __init__(self, batch: Batch, device: torch.device, done: torch.Event | None = None) -> None:
        self._batch, self._device, self._done = batch, device, done

    def wait(self) -> Batch:
        """Return the batch for use on the current stream, which waits for the copy; the host does not wait."""
        if self._done is None:
            return self._batch
        current = torch.cuda.current_stream(self._device)
        current.wait_event(self._done)
        for leaf in trees.leaves(self._batch):
            if isinstance(leaf, torch.Tensor) and leaf.is_cuda:
                # The side stream allocated the memory, and must not reuse it before the current stream is done.
                leaf.record_stream(current)
        return self._batch


def start_transfer(batch: Batch, device: torch.device, move: Callable[[Batch], Batch]) -> Transfer:
    """Begin to copy a batch; on CUDA on a side stream, if it consists of dense CPU tensors.

    The caching allocator requires ``record_stream`` for every tensor that is allocated on one stream and used on
    another, which only dense tensors support. Sparse and nested tensors, and objects with a custom ``to``, such as
    packed sequences and graphs, are copied on the current stream.

    Args:
        batch: The batch; copies overlap with other work only if it is in pinned memory.
        device: The device.
        move: Returns the batch on that device.

    >>> start_transfer(torch.ones(1), torch.device("cpu"), lambda batch: batch.to("cpu")).wait()
    tensor([1.])
    """
    if device.type not in SIDE_STREAMS or not all(_can_copy_on_side_stream(leaf) for leaf in trees.leaves(batch)):
        return Transfer(move(batch), device)
    side = _side_stream(device)
    with torch.cuda.stream(side):
        return Transfer(move(batch), device, side.record_event(torch.cuda.Event()))


def _can_copy_on_side_stream(leaf: Any) -> bool:
    """Return whether a leaf of a batch is not moved, or is a tensor that can be copied on a side stream."""
    if isinstance(leaf, torch.Tensor):
        is_plain = type(leaf) in (torch.Tensor, nn.Parameter) and leaf.layout == torch.strided and not leaf.is_nested
        # A tensor already on a device may still be computed on a stream that the side stream does not wait for.
        return is_plain and leaf.is_cpu
    return isinstance(leaf, type) or not callable(getattr(leaf, "to", None))


@functools.cache
def _side_stream(device: torch.device) -> torch.cuda.Stream:
    return torch.cuda.Stream(device)
