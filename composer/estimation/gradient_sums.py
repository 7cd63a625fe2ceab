"""Sums of gradients in the backward pass, which autograd computes in place where a gradient has no other owner.

Where a dispatch mode is active, autograd adds out of place. That takes one more tensor for each sum, such as those over
the positions of a recurrent net.
"""

from __future__ import annotations

import weakref
from typing import Any

import torch
from torch import Tensor

__all__ = ["GradientSums"]

_ADD = torch.ops.aten.add.Tensor
# The references to the memory of a tensor that has one owner: that of the tensor, and that of Python's storage.
_OWNED = 2


class GradientSums:
    """Tells the sums of autograd from those within the backward pass of an operator.

    The terms of a sum of autograd come from two nodes of the graph; what an operator adds in its own backward pass
    comes from one.

    >>> GradientSums().is_in_place(_ADD, [torch.ones(2), torch.ones(2)])  # no backward pass is running
    False
    """

    def __init__(self) -> None:
        self._made_by: weakref.WeakKeyDictionary[torch.UntypedStorage, int] = weakref.WeakKeyDictionary()

    def note(self, outputs: Any) -> None:
        """Note which node of the graph has made a tensor.

        Args:
            outputs: What an operator returned.
        """
        node = torch._C._current_autograd_node()
        if node is not None and isinstance(outputs, Tensor):
            self._made_by[outputs.untyped_storage()] = node._sequence_nr()

    def is_in_place(self, func: Any, inputs: Any) -> bool:
        """Return whether autograd would write the sum into the first tensor.

        Args:
            func: The operator.
            inputs: Its tensors.
        """
        if func is not _ADD or len(inputs) != 2 or torch.is_grad_enabled():
            return False
        node, (total, term) = torch._C._current_autograd_node(), inputs
        if node is None or total.shape != term.shape or total.dtype != term.dtype:
            return False
        storage = total.untyped_storage()
        if self._made_by.get(storage) in (None, node._sequence_nr()):
            return False
        return torch._C._storage_Use_Count(storage._cdata) <= _OWNED and torch.ops.aten.is_non_overlapping_and_dense(
            total
        )
