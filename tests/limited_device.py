"""A device with little memory, simulated on the CPU: allocations beyond its limit raise out-of-memory errors."""

from __future__ import annotations

import weakref
from collections.abc import Iterable

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class LimitedDevice(TorchDispatchMode):
    """Counts the bytes of all tensors that operators return, as long as they live.

    Args:
        limit: Bytes that fit; None for no limit.
        tensors: What is there before.
    """

    def __init__(self, limit: int | None = None, tensors: Iterable[torch.Tensor] = ()) -> None:
        super().__init__()
        self.limit, self.used, self.peak, self.failures = limit, 0, 0, 0
        self._known: weakref.WeakSet[torch.UntypedStorage] = weakref.WeakSet()
        for tensor in tensors:
            self._allocate(tensor)

    def free(self, device: torch.device) -> int | None:
        """What ``free_memory`` returns in place of the CPU's None."""
        del device
        return None if self.limit is None else self.limit - self.used

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        outputs = func(*args, **(kwargs or {}))
        for each in tree_leaves(outputs):
            # Fake tensors compute with tensors on meta.
            if type(each) in (torch.Tensor, torch.nn.Parameter) and each.device.type == "cpu":
                self._allocate(each)
        return outputs

    def _allocate(self, tensor: torch.Tensor) -> None:
        storage = tensor.untyped_storage()
        if storage in self._known:
            return
        nbytes = storage.nbytes()
        if self.limit is not None and self.used + nbytes > self.limit:
            self.failures += 1
            raise torch.OutOfMemoryError(f"CUDA out of memory. Tried to allocate {nbytes} bytes.")
        self._known.add(storage)
        self.used += nbytes
        self.peak = max(self.peak, self.used)
        weakref.finalize(storage, self._release, nbytes)

    def _release(self, nbytes: int) -> None:
        self.used -= nbytes
