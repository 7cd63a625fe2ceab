"""Dimensions of a batch that methods change, such as the length of sequences: dynamic from the first compilation on."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

import torch
from torch import Tensor

from composer import trees
from composer.core.algorithm import Algorithm
from composer.core.traits import traits_of

__all__ = ["DynamicDims", "dynamic_dims", "mark_dynamic"]


class DynamicDims:
    """Marks the sizes that methods change, in batches and in the inputs of compiled blocks.

    A block gets activations, whose dimensions need not be those of the batch: a mask (L, L) has a length in each
    dimension, sequences come first in (L, B, C), and images become tokens (B, N, C). Hence a size of an input is
    dynamic unless it is the number of samples or a size of a weight of the block. Where a length happens to equal one
    of these at first, only the dimensions that are declared are dynamic, and a block may be compiled once more.

    Attributes:
        dims: The dimensions of the tensors of a batch; empty if no method changes sizes.

    Args:
        dims: The same.

    >>> sizes = DynamicDims((1,))
    >>> batch, mask = torch.zeros(2, 5), torch.zeros(5, 5)
    >>> sizes.mark_batch(batch)
    >>> sizes.mark_inputs((torch.zeros(2, 5, 8), mask), {8})
    >>> mask._dynamo_weak_dynamic_indices
    {0, 1}
    """

    def __init__(self, dims: tuple[int, ...] = ()) -> None:
        self.dims = dims
        self._batch_sizes: set[int] = set()

    def mark_batch(self, batch: Any) -> None:
        """Mark the sizes of a batch, or of a microbatch.

        Args:
            batch: The batch.
        """
        tensors = [leaf for leaf in trees.leaves(batch) if isinstance(leaf, Tensor)]
        self._batch_sizes = {tensor.shape[0] for tensor in tensors if tensor.ndim}
        mark_dynamic(tensors, self.dims)

    def mark_inputs(self, values: Any, constant: Collection[int]) -> None:
        """Mark the sizes of the inputs of a block.

        Args:
            values: The inputs: tensors, and collections of them.
            constant: Sizes of the weights of the block.
        """
        for leaf in trees.leaves(values):
            if isinstance(leaf, Tensor):
                mark_dynamic(leaf, (*self.dims, *self._others(leaf, constant)))

    def _others(self, tensor: Tensor, constant: Collection[int]) -> list[int]:
        """Return the dimensions beyond those declared whose sizes may change."""
        if not self._batch_sizes or not any(self.dims):
            return []  # before the first batch; or only the number of samples changes
        if tensor.ndim and tensor.shape[0] in self._batch_sizes:
            return [dim for dim, size in enumerate(tensor.shape) if dim and size not in constant]
        fixed = self._batch_sizes
        return [dim for dim, size in enumerate(tensor.shape) if size not in fixed and size not in constant]


def dynamic_dims(algorithms: Iterable[Algorithm]) -> tuple[int, ...]:
    """Return the dimensions of the tensors of a batch whose sizes change in training.

    Args:
        algorithms: The algorithms of the run.

    >>> from composer.algorithms import ProgressiveResizing, SeqLengthWarmup
    >>> dynamic_dims([SeqLengthWarmup(), ProgressiveResizing()])
    (1, 2, 3)
    """
    return tuple(sorted({dim for one in algorithms for dim in traits_of(one).dynamic_dims}))


def mark_dynamic(values: Any, dims: tuple[int, ...]) -> None:
    """Tell ``torch.compile`` which sizes of tensors will change, so that the first compilation is for any size.

    Without it, a function is compiled for the first size, and again for any size when the second one comes. A size that
    a model needs as a number stays one.

    Args:
        values: Inputs of a compiled function: tensors, and collections of them.
        dims: The dimensions; a tensor with fewer dimensions has none of them.

    >>> x = torch.zeros(2, 3)
    >>> mark_dynamic({"x": x}, (1, 2))
    >>> x._dynamo_weak_dynamic_indices
    {1}
    """
    for leaf in trees.leaves(values):
        if isinstance(leaf, Tensor):
            for dim in dims:
                if dim < leaf.ndim:
                    torch._dynamo.maybe_mark_dynamic(leaf, dim)
