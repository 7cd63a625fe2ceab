"""Memory format of images, which image methods must preserve."""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["is_channels_last", "select_samples"]


def is_channels_last(tensor: Tensor) -> bool:
    """Return whether a tensor is in channels-last memory format and not also contiguous.

    >>> is_channels_last(torch.zeros(2, 3, 4, 4).to(memory_format=torch.channels_last))
    True
    """
    if tensor.ndim != 4 or tensor.is_contiguous():
        return False
    return tensor.is_contiguous(memory_format=torch.channels_last)


def select_samples(tensor: Tensor, indices: Tensor) -> Tensor:
    """Return the samples of a batch at some indices, in the memory format of the batch.

    >>> select_samples(torch.tensor([5, 6, 7]), torch.tensor([2, 0]))
    tensor([7, 5])
    """
    if is_channels_last(tensor):
        return tensor.permute(0, 2, 3, 1).index_select(0, indices).permute(0, 3, 1, 2)
    return tensor.index_select(0, indices)
