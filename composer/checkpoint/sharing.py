"""Checkpoints that the first process reads for all."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar, cast

import torch
from torch import Tensor

from composer import dist

__all__ = ["Shared", "by_first", "replaced", "share"]

Value = TypeVar("Value")


@dataclass(frozen=True)
class Shared:
    """A tensor that the first process has, and the others get when it is their turn.

    Attributes:
        shape: Its shape.
        dtype: Its dtype.
        tensor: The tensor, in the first process.

    >>> Shared((1,), torch.float32, torch.ones(1)).receive()
    tensor([1.])
    """

    shape: tuple[int, ...]
    dtype: torch.dtype
    tensor: Tensor | None = field(default=None, repr=False)

    def receive(self) -> Tensor:
        """Return the tensor; all processes must call this, in the same order."""
        tensor = torch.empty(self.shape, dtype=self.dtype) if self.tensor is None else self.tensor.contiguous()
        dist.broadcast(tensor, 0)
        return tensor


def share(read: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """Return a checkpoint that the first process reads, with a :class:`Shared` for each tensor of the state.

    All processes must call this.

    Args:
        read: Returns the checkpoint; called in the first process.

    Raises:
        RuntimeError: The first process could not read it.

    >>> share(lambda: {"state": {"model": {"weight": torch.ones(1)}}})["state"]["model"]["weight"].shape
    (1,)
    """
    content: dict[str, Any] = {}

    def described() -> dict[str, Any]:
        content.update(read())
        content["state"] = replaced(content.get("state", {}), _shared)
        return {**content, "state": replaced(content["state"], _without_tensor)}

    told = by_first(described, "read the checkpoint")
    return content or told


def by_first(act: Callable[[], Value], what: str) -> Value:
    """Return in all processes what a function returns in the first one, the only one in which it is called.

    Args:
        act: Returns something that can be pickled.
        what: What it does, for the error: "read the checkpoint".

    Raises:
        RuntimeError: It raised in the first process, where that error is raised itself.

    >>> by_first(lambda: 1, "count")
    1
    """
    told: list[Any] = [None, None]
    failure: Exception | None = None
    if dist.get_global_rank() == 0:
        try:
            told[0] = act()
        except Exception as error:
            failure, told[1] = error, f"{type(error).__name__}: {error}"
    dist.broadcast_object_list(told)
    if failure is not None:
        raise failure
    if told[1] is not None:
        raise RuntimeError(f"The first process could not {what}: {told[1]}")
    return told[0]


def replaced(node: Any, replace: Callable[[Any], Any]) -> Any:
    """Return nested containers with what a function puts in place of some of the nodes.

    Args:
        node: Dicts, lists and tuples; other things are leaves.
        replace: Given each node, containers before what is in them; returns the node itself where it is to stay.

    >>> replaced({"a": [1, None]}, lambda node: 2 if node is None else node)
    {'a': [1, 2]}
    """
    new = replace(node)
    if new is not node:
        return new
    if isinstance(node, dict):
        return {key: replaced(value, replace) for key, value in cast("dict[Any, Any]", node).items()}
    if isinstance(node, (list, tuple)):
        values = [replaced(value, replace) for value in cast("list[Any]", node)]
        return values if isinstance(node, list) else tuple(values)
    return node


def _shared(node: Any) -> Any:
    return Shared(tuple(node.shape), node.dtype, node) if isinstance(node, Tensor) else node


def _without_tensor(node: Any) -> Any:
    return Shared(node.shape, node.dtype) if isinstance(node, Shared) else node
