"""Operators on sequences whose memory depends on lengths, which a program may know without computing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from composer.estimation.placeholders import placeholder

__all__ = ["packed_sequence", "with_known_lengths"]

aten = torch.ops.aten


def with_known_lengths(func: Any, args: Sequence[Any], is_known: Callable[[Tensor], bool]) -> Sequence[Any]:
    """Return the arguments of an operator on sequences, with the lengths that are known in its arguments' shapes.

    Args:
        func: The operator.
        args: Its arguments.
        is_known: ``is_known(tensor)`` tells whether the tensor has values.

    >>> targets, lengths = torch.zeros(7, dtype=torch.int64), torch.tensor([3, 4])
    >>> args = (torch.zeros(9, 2, 5), targets, torch.tensor([9, 9]), lengths)
    >>> with_known_lengths(aten._ctc_loss.Tensor, args, lambda tensor: True)[1].shape
    torch.Size([2, 4])
    """
    if func is not aten._ctc_loss.Tensor or args[1].ndim == 2 or not is_known(args[3]):
        return args
    targets = args[1].new_empty((args[0].shape[1], int(args[3].max())))
    return (args[0], targets, *args[2:])


def packed_sequence(padded: Tensor, lengths: Tensor, batch_first: bool, *, are_known: bool) -> tuple[Tensor, Tensor]:
    """Return what ``pack_padded_sequence`` returns, without values: the number of samples at each position has values.

    Args:
        padded: Sequences of shape (T, B, ...), or (B, T, ...) with ``batch_first``.
        lengths: Their lengths, of shape (B,), the longest first.
        batch_first: Whether the first dimension is that of the batch.
        are_known: Whether the lengths have values; else all sequences are as long as possible.

    >>> data, sizes = packed_sequence(torch.zeros(2, 3, 5), torch.tensor([3, 1]), True, are_known=True)
    >>> data.shape, sizes
    (torch.Size([4, 5]), tensor([2, 1, 1]))
    """
    batch, longest = padded.shape[:2] if batch_first else (padded.shape[1], padded.shape[0])
    if not are_known:
        lengths = torch.full((batch,), longest)
    sizes = (lengths[None] > torch.arange(int(lengths[0]))[:, None]).sum(1)
    shape = (int(lengths.sum()), *padded.shape[2:])
    return placeholder(shape, torch.empty(shape, device="meta").stride(), padded.dtype, padded.device), sizes
