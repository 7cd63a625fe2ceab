"""Remember which memory was allocated here, without keeping it."""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef

from composer.dist.dtensor import is_sharded

__all__ = ["OwnedMemory"]


class OwnedMemory:
    """A set of the memory of tensors, by storage: it follows ``tensor.data = ...`` and ``tensor.set_(...)``.

    A copy of it, or what is unpickled, is empty.

    >>> owned, tensor = OwnedMemory(), torch.ones(2)
    >>> owned.replace([tensor])
    >>> tensor in owned, torch.ones(2) in owned
    (True, False)
    """

    def __init__(self) -> None:
        self._storages: set[StorageWeakRef] = set()

    def __contains__(self, tensor: Tensor) -> bool:
        found = _storage(tensor)
        return found is not None and found in self._storages

    def replace(self, tensors: list[Tensor]) -> None:
        """Remember the memory of these tensors in place of the others.

        Args:
            tensors: Sharded ones count by the part of this rank; sparse ones are left out.
        """
        # An expired reference still takes its place in memory, so that no other storage can be equal to it.
        self._storages = {storage for storage in map(_storage, tensors) if storage is not None}

    def __reduce__(self) -> tuple[Any, ...]:
        return OwnedMemory, ()  # a reference must not be freed twice


def _storage(tensor: Tensor) -> StorageWeakRef | None:
    """The memory of a tensor, if it is in one piece."""
    part: Tensor = cast(Any, tensor).to_local() if is_sharded(tensor) else tensor
    return StorageWeakRef(part.untyped_storage()) if part.layout is torch.strided else None
