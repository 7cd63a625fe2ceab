"""Copies of a state in host memory, so that training can go on while they are written."""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor

from composer.devices import PINNING

__all__ = ["PLAIN", "Snapshot"]

PLAIN = frozenset({bool, float, int, str, type(None)})
"""Types with nothing to copy; the states of random generators have hundreds of them."""


class Snapshot:
    """Copies nested containers with their tensors to the host, into the same memory each time.

    Memory that is used again is several times as fast as new memory, which the system has to map page by page. On an
    accelerator the copies go to pinned memory, all on their way at once. Tensors that share their elements share them
    in the copy too.

    >>> snapshot, weight = Snapshot(), torch.ones(2)
    >>> copy = snapshot.take({"a": weight, "b": [weight, 1]})
    >>> _ = weight.zero_()
    >>> copy["a"], copy["b"][0] is copy["a"]
    (tensor([1., 1.]), True)
    """

    def __init__(self) -> None:
        self._memory: dict[Any, list[Tensor]] = {}

    def take(self, content: dict[str, Any]) -> dict[str, Any]:
        """Return a copy, complete when this returns; the one before is overwritten.

        Args:
            content: Dicts, lists and tuples with tensors; other values are taken to never change.
        """
        taking = _Taking(self._memory)
        copy = taking.copy(content)
        taking.fill()
        self._memory = taking.used
        return copy


class _Taking:
    """One copy: first its structure, then all elements in one call.

    Args:
        memory: Tensors of before, by what they are like.
    """

    def __init__(self, memory: dict[Any, list[Tensor]]) -> None:
        self.used: dict[Any, list[Tensor]] = {}
        self._memory = memory
        self._copies: dict[Any, Tensor] = {}
        self._sources: list[Tensor] = []
        self._targets: list[Tensor] = []

    def copy(self, node: Any) -> Any:
        """The same containers, with memory in place of the tensors."""
        if isinstance(node, Tensor):
            return self._tensor(node.detach())
        if isinstance(node, dict):
            items = cast("dict[Any, Any]", node).items()
            return {key: value if type(value) in PLAIN else self.copy(value) for key, value in items}
        if isinstance(node, (list, tuple)):
            values = cast("list[Any]", node)
            if PLAIN.issuperset(map(type, values)):
                return values[:]
            copies = [value if type(value) in PLAIN else self.copy(value) for value in values]
            return copies if isinstance(node, list) else tuple(copies)
        return node

    @torch.no_grad()
    def fill(self) -> None:
        """Copy the elements; complete when this returns."""
        if self._sources:
            torch._foreach_copy_(self._targets, self._sources, non_blocking=True)  # pyright: ignore[reportPrivateImportUsage]
        accelerator = torch.accelerator.current_accelerator()
        for device in {source.device for source in self._sources}:
            if accelerator is not None and device.type == accelerator.type:
                torch.accelerator.synchronize(device)

    def _tensor(self, tensor: Tensor) -> Tensor:
        like = (tensor.device, tensor.dtype, tensor.shape, tensor.stride())
        key = (tensor.data_ptr(), like)
        # Tensors without elements all have the same address.
        if key in self._copies and tensor.numel():
            return self._copies[key]
        before = self._memory.get(like)
        memory = (
            before.pop() if before else torch.empty_like(tensor, device="cpu", pin_memory=tensor.device.type in PINNING)
        )
        self.used.setdefault(like, []).append(memory)
        self._copies[key] = memory
        self._sources.append(tensor)
        self._targets.append(memory)
        return memory
