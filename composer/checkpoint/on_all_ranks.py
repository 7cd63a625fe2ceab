"""What processes do together with a checkpoint, so that all fail where one does; and what the first reads for all."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar, cast

import torch
import torch.distributed as torch_dist
from torch import Tensor

from composer import dist

__all__ = ["Shared", "by_all", "by_first", "replaced", "share"]

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
    attempt = _Attempt(act if dist.get_global_rank() == 0 else None)
    told: list[Any] = [attempt.told]
    dist.broadcast_object_list(told)
    [value] = attempt.values(told, what, RuntimeError)
    return value


def by_all(act: Callable[[], Value], what: str, group: torch_dist.ProcessGroup | None = None) -> list[Value]:
    """Return in all processes what a function returns in each, which calls it.

    Args:
        act: Returns something that can be pickled.
        what: What it does, for the error: "write its part of the checkpoint".
        group: The processes; None is all.

    Raises:
        OSError: It raised in another process. Where it raised here, that error is raised itself.

    >>> by_all(lambda: 1, "count")
    [1]
    """
    attempt = _Attempt(act)
    return attempt.values(dist.all_gather_object(attempt.told, group), what, OSError)


class _Attempt:
    """What came of something that this process tried, and what others are told of it.

    Args:
        act: What; None where others do it.
    """

    def __init__(self, act: Callable[[], Any] | None) -> None:
        value, text = None, None
        self._failure: Exception | None = None
        try:
            value = None if act is None else act()
        except Exception as error:
            self._failure, text = error, f"{type(error).__name__}: {error}"
        self.told: tuple[Any, str | None] = value, text

    def values(self, told: list[tuple[Any, str | None]], what: str, kind: type[Exception]) -> list[Any]:
        """Return the values of all who tried; raise where it failed here, or anywhere."""
        if self._failure is not None:
            self._failure.add_note(f"This happened on rank {dist.get_global_rank()}.")
            raise self._failure
        for rank, (_, text) in enumerate(told):
            if text is not None:
                raise kind(f"Rank {rank} could not {what}: {text}")
        return [value for value, _ in told]


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
