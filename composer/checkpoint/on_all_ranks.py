"""Run a step on rank 0 or on every rank, share the result, and raise on all ranks if one fails.

This avoids a hang when one rank raises and the others wait for it in a collective.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar, cast

import torch
import torch.distributed as torch_dist
from torch import Tensor

from composer import dist

__all__ = [
    "BroadcastTensor",
    "gather_from_all_ranks",
    "map_nodes",
    "read_on_rank_zero",
    "run_on_all_ranks",
    "run_on_rank_zero",
]

Value = TypeVar("Value")


@dataclass(frozen=True)
class BroadcastTensor:
    """A tensor on rank 0 that is broadcast to the other ranks when it is needed.

    Attributes:
        shape: Its shape.
        dtype: Its dtype.
        tensor: The tensor, on rank 0 only.

    >>> BroadcastTensor((1,), torch.float32, torch.ones(1)).receive()
    tensor([1.])
    """

    shape: tuple[int, ...]
    dtype: torch.dtype
    tensor: Tensor | None = field(default=None, repr=False)

    def receive(self) -> Tensor:
        """Broadcast and return the tensor; all ranks must call this in the same order."""
        tensor = torch.empty(self.shape, dtype=self.dtype) if self.tensor is None else self.tensor.contiguous()
        dist.broadcast(tensor, 0)
        return tensor


def read_on_rank_zero(read: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """Read a checkpoint on rank 0; on all ranks return it with a :class:`BroadcastTensor` for each tensor of the state.

    All ranks must call this.

    Args:
        read: Returns the checkpoint; called on rank 0 only.

    Raises:
        RuntimeError: Rank 0 could not read it.

    >>> read_on_rank_zero(lambda: {"state": {"model": {"weight": torch.ones(1)}}})["state"]["model"][
    ...     "weight"
    ... ].shape
    (1,)
    """
    content: dict[str, Any] = {}

    def structure() -> dict[str, Any]:
        content.update(read())
        content["state"] = map_nodes(content.get("state", {}), _as_broadcast)
        return {**content, "state": map_nodes(content["state"], _without_tensor)}

    result = run_on_rank_zero(structure, "read the checkpoint")
    return content or result


def run_on_rank_zero(act: Callable[[], Value], what: str) -> Value:
    """Call a function on rank 0, broadcast its result, and return it on all ranks.

    Args:
        act: Returns a value that can be pickled.
        what: What it does, for the error message: "read the checkpoint".

    Raises:
        RuntimeError: It failed on rank 0, which raises the original error.

    >>> run_on_rank_zero(lambda: 1, "count")
    1
    """
    attempt = _Attempt(act if dist.get_global_rank() == 0 else None)
    result: list[Any] = [attempt.result]
    dist.broadcast_object_list(result)
    [value] = attempt.values(result, what, RuntimeError)
    return value


def run_on_all_ranks(act: Callable[[], Value], what: str, group: torch_dist.ProcessGroup | None = None) -> Value:
    """Call a function on every rank, and return its result on this rank.

    All ranks all-reduce one number, and all-gather texts only if it failed.

    Args:
        act: The function.
        what: What it does, for the error message: "write its shards of the checkpoint".
        group: Process group; None is the default group.

    Raises:
        OSError: It failed on another rank. A rank on which it failed raises the original error.

    >>> run_on_all_ranks(lambda: 1, "count")
    1
    """
    attempt = _Attempt(act)
    value, text = attempt.result
    if dist.largest(int(text is not None), group):
        attempt.values(dist.all_gather_object((None, text), group), what, OSError)
    return cast(Value, value)


def gather_from_all_ranks(
    act: Callable[[], Value], what: str, group: torch_dist.ProcessGroup | None = None
) -> list[Value]:
    """Call a function on every rank, and return the results of all ranks on the first one; an empty list on others.

    Args:
        act: Returns a value that can be pickled.
        what: As for :func:`run_on_all_ranks`.
        group: As for :func:`run_on_all_ranks`.

    Raises:
        OSError: As for :func:`run_on_all_ranks`.

    >>> gather_from_all_ranks(lambda: 1, "count")
    [1]
    """
    return dist.gather_object(run_on_all_ranks(act, what, group), group) or []


class _Attempt:
    """The result or the error of a call on this rank.

    Args:
        act: The function; None if only other ranks call it.
    """

    def __init__(self, act: Callable[[], Any] | None) -> None:
        value, text = None, None
        self._failure: Exception | None = None
        try:
            value = None if act is None else act()
        except Exception as error:
            self._failure, text = error, f"{type(error).__name__}: {error}"
        self.result: tuple[Any, str | None] = value, text

    def values(self, result: list[tuple[Any, str | None]], what: str, error_class: type[Exception]) -> list[Any]:
        """Return the values of all ranks; raise if the call failed on any of them."""
        if self._failure is not None:
            self._failure.add_note(f"This happened on rank {dist.get_global_rank()}.")
            raise self._failure
        for rank, (_, text) in enumerate(result):
            if text is not None:
                raise error_class(f"Rank {rank} could not {what}: {text}")
        return [value for value, _ in result]


def map_nodes(node: Any, transform: Callable[[Any], Any]) -> Any:
    """Return nested containers with some nodes replaced by a function.

    Args:
        node: Dicts, lists and tuples; everything else is a leaf.
        transform: Called with each node, containers before their elements; returns the node itself to keep it.

    >>> map_nodes({"a": [1, None]}, lambda node: 2 if node is None else node)
    {'a': [1, 2]}
    """
    new = transform(node)
    if new is not node:
        return new
    if isinstance(node, dict):
        return {key: map_nodes(value, transform) for key, value in cast("dict[Any, Any]", node).items()}
    if isinstance(node, (list, tuple)):
        values = [map_nodes(value, transform) for value in cast("list[Any]", node)]
        return values if isinstance(node, list) else tuple(values)
    return node


def _as_broadcast(node: Any) -> Any:
    return BroadcastTensor(tuple(node.shape), node.dtype, node) if isinstance(node, Tensor) else node


def _without_tensor(node: Any) -> Any:
    return BroadcastTensor(node.shape, node.dtype) if isinstance(node, BroadcastTensor) else node
