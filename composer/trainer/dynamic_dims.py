"""Dimensions of a batch that methods change, such as the length of sequences: dynamic from the first compilation on."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from composer import trees
from composer.core.algorithm import Algorithm
from composer.core.traits import traits_of

__all__ = ["dynamic_dims", "mark_dynamic"]


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
