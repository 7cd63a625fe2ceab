"""Copies of a state in host memory, so that training can go on while they are written."""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor

__all__ = ["Snapshot"]

# Nothing to copy; the states of random generators have hundreds of them.
_PLAIN = frozenset({bool, float, int, str, type(None)})


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
        self._memory: dict[str, Tensor] = {}

    def take(self, content: dict[str, Any]) -> dict[str, Any]:
        """Return a copy, complete when this returns; the one before is overwritten.

        Args:
            content: Dicts, lists and tuples with tensors; other values are taken to never change.
        """
        copies: dict[Any, Tensor] = {}
        used: dict[str, Tensor] = {}
        copy = self._copy(content, "", copies, used)
        self._memory = used
        if any(key[0].type == "cuda" for key in copies):
            torch.cuda.synchronize()
        return copy

    def _copy(self, node: Any, path: str, copies: dict[Any, Tensor], used: dict[str, Tensor]) -> Any:
        if isinstance(node, Tensor):
            key = (node.device, node.dtype, node.data_ptr(), node.shape, node.stride())
            # Tensors without elements all have the same address.
            if key not in copies or not node.numel():
                copies[key] = used[path] = self._tensor(node, path)
            return copies[key]
        if isinstance(node, dict):
            items = cast("dict[Any, Any]", node).items()
            return {
                key: value if type(value) in _PLAIN else self._copy(value, f"{path}/{key}", copies, used)
                for key, value in items
            }
        if isinstance(node, (list, tuple)):
            values = [
                value if type(value) in _PLAIN else self._copy(value, f"{path}/{number}", copies, used)
                for number, value in enumerate(cast("list[Any]", node))
            ]
            return values if isinstance(node, list) else tuple(values)
        return node

    def _tensor(self, tensor: Tensor, path: str) -> Tensor:
        tensor = tensor.detach()
        memory = self._memory.get(path)
        if memory is None or memory.shape != tensor.shape or memory.dtype != tensor.dtype:
            memory = torch.empty_like(tensor, device="cpu", pin_memory=tensor.device.type == "cuda")
        return memory.copy_(tensor, non_blocking=tensor.device.type == "cuda")
