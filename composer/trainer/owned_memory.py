"""Track tensors whose storage was cloned by the trainer (CUDA graphs)."""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef

from composer.dist.dtensor import is_dtensor

__all__ = ["OwnedMemory"]


class OwnedMemory:
    """A set of tensor storages, held by weak references: it follows ``tensor.data = ...`` and ``tensor.set_(...)``.

    Copies and unpickled instances are empty.

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
        """Replace the set by the storages of these tensors.

        Args:
            tensors: The tensors; of a sharded tensor, the local shard counts. Sparse tensors are left out.
        """
        # An expired reference keeps its address, so no other storage can compare equal to it.
        self._storages = {storage for storage in map(_storage, tensors) if storage is not None}

    def __reduce__(self) -> tuple[Any, ...]:
        return OwnedMemory, ()  # a reference must not be freed twice


def _storage(tensor: Tensor) -> StorageWeakRef | None:
    """Return the storage of a strided tensor, or of its local shard; None for other layouts."""
    local: Tensor = cast(Any, tensor).to_local() if is_dtensor(tensor) else tensor
    return StorageWeakRef(local.untyped_storage()) if local.layout is torch.strided else None
