"""Copy device tensors to host memory for an asynchronous checkpoint, so that training can continue meanwhile."""

from __future__ import annotations

import collections
from typing import Any, cast

import torch
from torch import Tensor, nn

from composer.checkpoint.host_memory import FlatBuffer

__all__ = ["DICTS", "PLAIN", "HostCopy"]

PLAIN = frozenset({bool, float, int, str, type(None)})
"""Immutable types, which need no copy; random states have hundreds of them."""

DICTS = frozenset({collections.OrderedDict, collections.Counter})
"""Subclasses of dict that are kept: all readers know them, and scripts rely on their behavior."""


class HostCopy:
    """Copies nested containers and their tensors to the host, into the same memory each time.

    Reused memory is several times as fast as new memory, which the system has to map page by page. From an
    accelerator, tensors are copied asynchronously to pinned memory. Dense tensors are in one :class:`.FlatBuffer` per
    device type. Tensors that share elements share them in the copy too.

    >>> host_copy, weight = HostCopy(), torch.ones(2)
    >>> copy = host_copy.copy({"a": weight, "b": [weight, 1]})
    >>> _ = weight.zero_()
    >>> copy["a"], copy["b"][0] is copy["a"]
    (tensor([1., 1.]), True)
    """

    def __init__(self) -> None:
        self._buffers: dict[str, FlatBuffer] = {}

    def copy(self, content: dict[str, Any]) -> dict[str, Any]:
        """Return a finished copy; the previous copy is overwritten.

        Args:
            content: Plain values, see :func:`.plain`, and tensors.
        """
        copying = _CopyPass(self._buffers)
        copy = copying.copy(content)
        copying.fill()
        return copy


class _CopyPass:
    """One copy: first its structure, then all elements in one call.

    Args:
        buffers: Buffers of the previous copy by device type; unused ones are dropped.
    """

    def __init__(self, buffers: dict[str, FlatBuffer]) -> None:
        self._buffers = buffers
        self._used: dict[str, FlatBuffer] = {}
        self._copies: dict[Any, Tensor] = {}
        self._sources: list[Tensor] = []
        self._targets: list[Tensor] = []
        self._aliases: list[tuple[Tensor, Tensor]] = []

    def copy(self, node: Any) -> Any:
        """Return copies of the containers, with unfilled tensors."""
        if isinstance(node, Tensor):
            return self._as_in(node, self._tensor(node))
        if isinstance(node, dict):
            cls, items = type(node), cast("dict[Any, Any]", node).items()
            copied = {key: value if type(value) in PLAIN else self.copy(value) for key, value in items}
            return cls(copied) if cls in DICTS else copied
        if isinstance(node, (list, tuple)):
            values = cast("list[Any]", node)
            if PLAIN.issuperset(map(type, values)):
                return values[:]
            copies = [value if type(value) in PLAIN else self.copy(value) for value in values]
            return copies if isinstance(node, list) else tuple(copies)
        if isinstance(node, (bytearray, set)):
            return node.copy()
        return node

    @torch.no_grad()
    def fill(self) -> None:
        """Copy all elements, and wait until they have arrived."""
        for cls in self._buffers.keys() - self._used.keys():
            del self._buffers[cls]
        self._buffers.update(self._used)
        for buffer in self._used.values():
            buffer.allocate()
        for alias, target in self._aliases:
            alias.data = target
        if self._sources:
            torch._foreach_copy_(self._targets, self._sources, non_blocking=True)  # pyright: ignore[reportPrivateImportUsage]
        accelerator = torch.accelerator.current_accelerator()
        for device in {source.device for source in self._sources}:
            if accelerator is not None and device.type == accelerator.type:
                torch.accelerator.synchronize(device)

    def _as_in(self, node: Tensor, target: Tensor) -> Tensor:
        """Return the copy as a parameter or as a tensor that requires gradients, if the original is one."""
        is_parameter = type(node) is nn.Parameter
        if node.layout != torch.strided or not (is_parameter or node.requires_grad):
            return target
        # Another tensor, which does not require gradients, may share its memory.
        alias = nn.Parameter(target, node.requires_grad) if is_parameter else target.detach().requires_grad_()
        self._aliases.append((alias, target))
        return alias

    def _tensor(self, node: Tensor) -> Tensor:
        tensor = node.detach()
        if not _is_dense(tensor):
            if id(node) not in self._copies:
                self._copies[id(node)] = tensor.to("cpu", copy=True)
            return self._copies[id(node)]
        if not tensor.numel():  # has no address; in a file it must not seem to share that of its neighbor
            return torch.empty_like(tensor, device="cpu").as_subclass(Tensor)
        # A lazy conjugate differs from its base only by a bit.
        bits = tensor.is_conj(), tensor.is_neg()
        key = (tensor.data_ptr(), tensor.device, tensor.dtype, tensor.shape, tensor.stride(), bits)
        if key in self._copies:
            return self._copies[key]
        cls = tensor.device.type
        buffer = self._used.get(cls)
        if buffer is None:
            buffer = self._used[cls] = self._buffers.get(cls) or FlatBuffer(cls)
        self._copies[key] = target = buffer.tensor_like(tensor)
        self._sources.append(tensor)
        self._targets.append(target)
        return target


def _is_dense(tensor: Tensor) -> bool:
    """Return whether a tensor is plain strided memory, without wrapped or nested tensors."""
    wraps = hasattr(type(tensor), "__tensor_flatten__")
    return tensor.layout == torch.strided and not (tensor.is_nested or tensor.is_quantized or wraps)
