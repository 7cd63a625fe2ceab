"""Dimensions of a batch that methods change, such as the length of sequences: dynamic from the first compilation on.

Convolutions are the exception: inductor compiles them for constant sizes, each size that comes.
"""

from __future__ import annotations

import inspect
from collections.abc import Collection, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd  # pyright: ignore[reportPrivateUsage]

from composer import trees
from composer.core.algorithm import Algorithm
from composer.core.traits import traits_of

__all__ = ["DynamicDims", "dynamic_dims", "is_compiled_by_size", "mark_dynamic", "with_recompile_limit"]

# The number of versions of a compiled function, torch's own limit. Beyond it the function runs eagerly.
_RECOMPILE_LIMIT = 8
# The same for a function that is compiled for each size of its inputs, as many as a schedule of sizes has.
_LIMIT_OF_SIZES = 64


class DynamicDims:
    """Marks the sizes that methods change, in batches and in the inputs of compiled blocks.

    A block gets activations, whose dimensions need not be those of the batch: a mask (L, L) has a length in each
    dimension, sequences come first in (L, B, C), and images become tokens (B, N, C). Hence a size of an input is
    dynamic unless it is the number of samples or a size of a weight of the block. Where a length happens to equal one
    of these at first, only the dimensions that are declared are dynamic, and a block may be compiled once more.

    Attributes:
        dims: The dimensions of the tensors of a batch; empty if no method changes sizes.
        by_size: Whether the model is compiled for each size of a sample, see :func:`is_compiled_by_size`.

    Args:
        dims: The same.
        by_size: The same.

    >>> sizes = DynamicDims((1,))
    >>> batch, mask = torch.zeros(2, 5), torch.zeros(5, 5)
    >>> sizes.mark_batch(batch)
    >>> sizes.mark_inputs((torch.zeros(2, 5, 8), mask), {8})
    >>> mask._dynamo_weak_dynamic_indices
    {0, 1}
    """

    def __init__(self, dims: tuple[int, ...] = (), *, by_size: bool = False) -> None:
        self.dims, self.by_size = dims, by_size
        self._batch_sizes: set[int] = set()

    def mark_batch(self, batch: Any) -> None:
        """Mark the sizes of a batch, or of a microbatch.

        Args:
            batch: The batch.
        """
        tensors = [leaf for leaf in trees.leaves(batch) if isinstance(leaf, Tensor)]
        self._batch_sizes = {tensor.shape[0] for tensor in tensors if tensor.ndim}
        mark_dynamic(tensors, self.dims, by_size=self.by_size)

    def mark_inputs(self, values: Any, constant: Collection[int], *, by_size: bool = False) -> None:
        """Mark the sizes of the inputs of a block.

        Args:
            values: The inputs: tensors, and collections of them.
            constant: Sizes of the weights of the block.
            by_size: Whether the block is compiled for each size of a sample.
        """
        for leaf in trees.leaves(values):
            if isinstance(leaf, Tensor):
                mark_dynamic(leaf, (*self.dims, *self._others(leaf, constant)), by_size=by_size)

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


def is_compiled_by_size(module: nn.Module, config: Mapping[str, Any]) -> bool:
    """Return whether a module must be compiled for each size of a sample: inductor compiles a convolution.

    Code for any size does not work there. On the CPU inductor lays the images out anew and compiles the backward pass
    for the strides of the first ones, which fails for others, at a later size or in the compilation itself. Since torch
    2.13 the backward pass of a convolution is for one size on any device. Constant sizes work, with the best layout.

    Args:
        module: The module.
        config: The arguments of :func:`torch.compile`.

    >>> is_compiled_by_size(nn.Sequential(nn.Conv2d(3, 8, 3)), {})
    True
    >>> is_compiled_by_size(nn.Linear(3, 8), {})
    False
    """
    return config.get("backend", "inductor") == "inductor" and any(isinstance(one, _ConvNd) for one in module.modules())


def with_recompile_limit(config: dict[str, Any], limit: int = _LIMIT_OF_SIZES) -> dict[str, Any]:
    """Return arguments of ``torch.compile`` with a limit of versions, unless they have one.

    Args:
        config: The arguments.
        limit: The number of versions; by default enough for a schedule of sizes.

    >>> with_recompile_limit({"recompile_limit": 2})
    {'recompile_limit': 2}
    """
    if "recompile_limit" in config or "recompile_limit" not in inspect.signature(torch.compile).parameters:
        return config
    return {**config, "recompile_limit": max(_RECOMPILE_LIMIT, limit)}


def mark_dynamic(values: Any, dims: tuple[int, ...], *, by_size: bool = False) -> None:
    """Tell ``torch.compile`` which sizes of tensors will change, so that the first compilation is for any size.

    Without it, a function is compiled for the first size, and again for any size when the second one comes. A size that
    a model needs as a number stays one.

    Args:
        values: Inputs of a compiled function: tensors, and collections of them.
        dims: The dimensions; a tensor with fewer dimensions has none of them.
        by_size: Whether the function is compiled for each size of a sample: then only the number of samples is dynamic.

    >>> x = torch.zeros(2, 3)
    >>> mark_dynamic({"x": x}, (1, 2))
    >>> x._dynamo_weak_dynamic_indices
    {1}
    """
    for leaf in trees.leaves(values):
        if isinstance(leaf, Tensor):
            for dim in dims:
                if dim < leaf.ndim and by_size and dim:
                    torch._dynamo.mark_static(leaf, dim)
                elif dim < leaf.ndim:
                    torch._dynamo.maybe_mark_dynamic(leaf, dim)
