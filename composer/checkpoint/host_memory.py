"""Flat buffers in pinned or pageable host memory, which hold the tensors of an asynchronous checkpoint."""

from __future__ import annotations

import ctypes
import functools
import logging
import math
import mmap
import sys
import warnings
import weakref
from typing import Any, cast

import torch
from torch import Tensor

from composer.devices import PINNING
from composer.warnings import ComposerWarning

__all__ = ["FlatBuffer"]

_log = logging.getLogger("composer.checkpoint")

_ALIGNMENT = 64  # of torch's own tensors on the CPU
_PORTABLE = 1  # cudaHostRegisterPortable: pinned for every device
_SLACK = 8  # a buffer that had to grow has room for an eighth more


class FlatBuffer:
    """One buffer for many tensors, reused until they need a larger one.

    Its size is the sum of the bytes of its tensors, each aligned to 64 bytes. PyTorch's pinned allocator would round
    each tensor, and even a single large buffer, up to a power of two; so for CUDA, pageable memory is pinned in place.
    If that fails, as on some virtual GPUs, the allocator pins it; if that fails too, the memory stays pageable.
    Both give a warning. Each tensor has a separate storage, so that a writer does not write the others with it.

    Args:
        device_type: Type of the device from which tensors are copied.

    >>> buffer = FlatBuffer("cpu")
    >>> a, b = buffer.tensor_like(torch.ones(3)), buffer.tensor_like(torch.ones(2, dtype=torch.bool))
    >>> buffer.allocate()
    >>> a.shape, b.dtype, b.data_ptr() - a.data_ptr(), buffer.num_bytes
    (torch.Size([3]), torch.bool, 64, 66)
    """

    def __init__(self, device_type: str) -> None:
        self._device_type = device_type
        self._memory: Tensor | None = None
        self._known: dict[Any, Tensor] = {}
        self._tensors: dict[Any, Tensor] = {}
        self._end = 0

    @property
    def num_bytes(self) -> int:
        """The size of the buffer."""
        return 0 if self._memory is None else self._memory.numel()

    def tensor_like(self, tensor: Tensor) -> Tensor:
        """Reserve space for a tensor; the result has its shape and strides after :meth:`allocate`.

        Args:
            tensor: A dense one, on any device, with at least one element.

        >>> FlatBuffer("cpu").tensor_like(torch.ones(3)).dtype
        torch.float32
        """
        shape, strides, dtype = tensor.shape, tensor.stride(), tensor.dtype
        start = -(-self._end // _ALIGNMENT) * _ALIGNMENT
        self._end = start + math.prod(shape) * dtype.itemsize
        key = (start, dtype, shape, strides)
        known = self._known.get(key)
        if known is None:
            known = torch.empty(0, dtype=dtype, device="cpu")
        self._tensors[key] = known
        return known

    @torch.no_grad()
    def allocate(self) -> None:
        """Allocate memory for the tensors reserved since the last call; earlier tensors are overwritten.

        >>> FlatBuffer("cpu").allocate()
        """
        tensors, size = self._tensors, self._end
        self._tensors, self._end = {}, 0
        # Pinning is slow: keep the buffer if sets of different sizes alternate, such as with and without optimizer.
        if self._memory is None or self.num_bytes < size:
            # Avoid a new buffer for each save if the set of tensors keeps growing.
            grows = self.num_bytes > 0
            for tensor in self._known.values():
                cast("Any", tensor).set_()  # free the old buffer before allocating the new one
            self._memory, self._known = None, {}
            self._memory = _host_memory(size + size // _SLACK if grows else size, self._device_type)
        storage, offset = self._memory.untyped_storage(), self._memory.storage_offset()
        for key, tensor in tensors.items():
            if key not in self._known:
                start, dtype, shape, strides = key
                begin = offset + start
                chunk: Any = storage[begin : begin + math.prod(shape) * dtype.itemsize]
                tensor.set_(chunk, 0, shape, _dense_strides(shape, strides))
        self._known = tensors


def _dense_strides(shape: torch.Size, strides: tuple[int, ...]) -> tuple[int, ...]:
    """Return the strides of a dense copy in the same dimension order, as ``torch.empty_like`` chooses them."""
    return torch.empty_like(torch.empty_strided(shape, strides, device="meta")).stride()


def _host_memory(size: int, device_type: str) -> Tensor:
    """Allocate host memory, pinned if asynchronous copies from this device type require it."""
    if device_type not in PINNING:
        return torch.empty(size, dtype=torch.uint8, device="cpu")
    failure = ""
    if device_type == "cuda":
        pinned, status = _pinned_in_place(size)
        if pinned is not None:
            return pinned
        failure = f"cudaHostRegister returned {status}"
    # Other devices cannot pin memory in place: the allocator rounds the size up, but only once.
    try:
        memory = torch.empty(size, dtype=torch.uint8, device="cpu", pin_memory=True)
    except RuntimeError as error:
        failure += f"{failure and ', '}pin_memory=True failed: {str(error).partition(chr(10))[0]}"
        _warn(f"could not be pinned ({failure}). It is pageable, so each save blocks training for longer.")
        return torch.empty(size, dtype=torch.uint8, device="cpu")
    if failure:
        _warn(
            f"could not be pinned in place ({failure}). PyTorch's allocator pins it, which takes up to twice the size."
        )
    return memory


def _pinned_in_place(size: int) -> tuple[Tensor | None, int]:
    """Return memory pinned by CUDA, or None, and the CUDA status."""
    # Use full pages: two buffers that share a page cannot both be pinned.
    page = mmap.PAGESIZE
    num_bytes = -(-size // page) * page
    memory = torch.empty(num_bytes + page, dtype=torch.uint8, device="cpu")
    offset = -memory.data_ptr() % page
    runtime: Any = torch.cuda.cudart()
    address = memory.data_ptr() + offset
    if status := int(runtime.cudaHostRegister(address, num_bytes, _PORTABLE)):
        _clear_last_error(runtime)
        return None, status
    pinned = memory[offset : offset + size]
    # At exit the system frees it; before that, no copy is in flight once it is released.
    weakref.finalize(pinned, _unpin, runtime, address).atexit = False
    return pinned, 0


def _unpin(runtime: Any, address: int) -> None:
    """Unpin memory that cudaHostRegister pinned."""
    if status := int(runtime.cudaHostUnregister(address)):
        _clear_last_error(runtime)
        _log.warning("Host memory of a checkpoint is still pinned: cudaHostUnregister returned %d.", status)


def _clear_last_error(runtime: Any) -> None:
    """Clear the error of a failed call; otherwise PyTorch raises it after the next kernel."""
    name = "hipGetLastError" if torch.version.hip else "cudaGetLastError"
    clear = getattr(runtime, "cudaGetLastError", None)
    if clear is None and sys.platform == "linux":  # PyTorch does not bind it, but has loaded its library globally
        clear = getattr(ctypes.CDLL(None), name, None)
    if clear is not None:
        clear()


@functools.cache
def _warn(text: str) -> None:
    """Warn once, rather than at each save."""
    warnings.warn(f"Host memory for asynchronous checkpoints {text}", ComposerWarning, stacklevel=2)
