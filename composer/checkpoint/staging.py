"""Copies of a state in host memory, so that training can go on while they are written."""

from __future__ import annotations

import collections
from typing import Any, cast

import torch
from torch import Tensor, nn

from composer.checkpoint.host_memory import FlatBuffer

__all__ = ["DICTS", "PLAIN", "Snapshot"]

PLAIN = frozenset({bool, float, int, str, type(None)})
"""Types with nothing to copy; the states of random generators have hundreds of them."""

DICTS = frozenset({collections.OrderedDict, collections.Counter})
"""Subclasses of dict that stay what they are: they are known to all readers, and scripts rely on what they do."""


class Snapshot:
    """Copies nested containers with their tensors to the host, into the same memory each time.

    Memory that is used again is several times as fast as new memory, which the system has to map page by page. On an
    accelerator the copies go to pinned memory, all on their way at once. Dense tensors are in one :class:`.FlatBuffer`
    for each type of device. Tensors that share their elements share them in the copy too.

    >>> snapshot, weight = Snapshot(), torch.ones(2)
    >>> copy = snapshot.take({"a": weight, "b": [weight, 1]})
    >>> _ = weight.zero_()
    >>> copy["a"], copy["b"][0] is copy["a"]
    (tensor([1., 1.]), True)
    """

    def __init__(self) -> None:
        self._buffers: dict[str, FlatBuffer] = {}

    def take(self, content: dict[str, Any]) -> dict[str, Any]:
        """Return a copy, complete when this returns; the one before is overwritten.

        Args:
            content: Plain values, see :func:`.plain`, and tensors.
        """
        taking = _Taking(self._buffers)
        copy = taking.copy(content)
        taking.fill()
        return copy


class _Taking:
    """One copy: first its structure, then all elements in one call.

    Args:
        buffers: Those of before, by the type of the device; those without tensors are dropped.
    """

    def __init__(self, buffers: dict[str, FlatBuffer]) -> None:
        self._buffers = buffers
        self._used: dict[str, FlatBuffer] = {}
        self._copies: dict[Any, Tensor] = {}
        self._sources: list[Tensor] = []
        self._targets: list[Tensor] = []
        self._aliases: list[tuple[Tensor, Tensor]] = []

    def copy(self, node: Any) -> Any:
        """The same containers, with memory in place of the tensors."""
        if isinstance(node, Tensor):
            return self._as_in(node, self._tensor(node))
        if isinstance(node, dict):
            kind, items = type(node), cast("dict[Any, Any]", node).items()
            copied = {key: value if type(value) in PLAIN else self.copy(value) for key, value in items}
            return kind(copied) if kind in DICTS else copied
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
        """Copy the elements; complete when this returns."""
        for kind in self._buffers.keys() - self._used.keys():
            del self._buffers[kind]
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
        """The copy as the same kind of tensor, which a file names: a parameter, or one that requires gradients."""
        is_parameter = type(node) is nn.Parameter
        if node.layout != torch.strided or not (is_parameter or node.requires_grad):
            return target
        # Its memory may be another tensor's too, which does not require gradients.
        alias = nn.Parameter(target, node.requires_grad) if is_parameter else target.detach().requires_grad_()
        self._aliases.append((alias, target))
        return alias

    def _tensor(self, node: Tensor) -> Tensor:
        tensor = node.detach()
        if not _is_dense(tensor):
            if id(node) not in self._copies:
                self._copies[id(node)] = tensor.to("cpu", copy=True)
            return self._copies[id(node)]
        if not tensor.numel():  # without an address; in a file it may not seem to share that of its neighbor
            return torch.empty_like(tensor, device="cpu").as_subclass(Tensor)
        # A lazy conjugate differs from its base by a bit only.
        bits = tensor.is_conj(), tensor.is_neg()
        key = (tensor.data_ptr(), tensor.device, tensor.dtype, tensor.shape, tensor.stride(), bits)
        if key in self._copies:
            return self._copies[key]
        kind = tensor.device.type
        buffer = self._used.get(kind)
        if buffer is None:
            buffer = self._used[kind] = self._buffers.get(kind) or FlatBuffer(kind)
        self._copies[key] = target = buffer.tensor_like(tensor)
        self._sources.append(tensor)
        self._targets.append(target)
        return target


def _is_dense(tensor: Tensor) -> bool:
    """Whether the elements are all that there is, in memory of the tensor's own."""
    wraps = hasattr(type(tensor), "__tensor_flatten__")
    return tensor.layout == torch.strided and not (tensor.is_nested or tensor.is_quantized or wraps)
