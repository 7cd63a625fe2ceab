"""Tensors that are divided among processes: made whole to be saved, and divided again when they are loaded."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn

from composer import dist, trees
from composer.checkpoint.staging import PLAIN

__all__ = ["Layout", "has_sharded", "is_sharded", "part_of", "shard_like", "whole"]


def is_sharded(value: Any) -> bool:
    """Tell whether something is a tensor of which this process holds a part: a ``DTensor``.

    Args:
        value: Anything.

    >>> is_sharded(torch.ones(1))
    False
    """
    # Its class is not asked for, as importing that takes most of a second.
    return isinstance(value, Tensor) and hasattr(value, "placements")


def has_sharded(content: Any) -> bool:
    """Tell whether there is a divided tensor among others.

    Args:
        content: Nested dicts, lists and tuples.

    >>> has_sharded({"weight": torch.ones(1)})
    False
    """
    return dist.is_initialized() and _has_divided(content)  # as it takes processes that have met


def part_of(tensor: Any) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the place in the whole of what this process holds: where it begins, and how long it is in each dimension.

    Args:
        tensor: A divided tensor, or one of which this process has all.

    >>> part_of(torch.ones(2, 3))
    ((0, 0), (2, 3))
    """
    if not is_sharded(tensor):
        return (0,) * tensor.dim(), tuple(tensor.shape)
    (chunk,) = tensor.__create_chunk_list__()
    return tuple(chunk.offsets), tuple(chunk.sizes)


@torch.no_grad()
def whole(content: dict[str, Any]) -> dict[str, Any]:
    """Return a copy in the memory of the first process's host, in which divided tensors are whole.

    All processes must call this. Tensors are gathered one by one, so that a device has never more than one of them.

    Args:
        content: Nested containers, the same on all processes but for what they hold of each tensor.

    Returns:
        The copy; on the other processes it has empty tensors.

    >>> whole({"weight": torch.ones(2)})
    {'weight': tensor([1., 1.])}
    """
    is_first = dist.get_global_rank() == 0
    nothing = torch.empty(0)
    copies: dict[Any, Tensor] = {}

    def copied(tensor: Tensor) -> Tensor:
        # Tied weights are gathered twice, as only a process that holds a part of them sees that they are one.
        gathered = cast("Any", tensor).full_tensor() if is_sharded(tensor) else tensor
        if not is_first:
            return nothing
        held = cast("Any", tensor).to_local() if is_sharded(tensor) else tensor
        key = (held.device, held.dtype, held.data_ptr(), held.shape, held.stride(), tensor.shape)
        if key not in copies or not held.numel():
            copies[key] = gathered.detach().to("cpu", copy=gathered is tensor)
        return copies[key]

    return trees.map_tensors(copied, content)


@torch.no_grad()
def shard_like(tensor: Tensor, other: Tensor) -> Tensor:
    """Return this process's part of a whole tensor, divided in the same way as another.

    Args:
        tensor: The whole, on any device; only what this process is to hold is read.
        other: A tensor of the same shape.

    >>> shard_like(torch.ones(2), torch.zeros(2))
    tensor([1., 1.])
    """
    made: Any = torch.empty_like(other.detach(), dtype=tensor.dtype)
    offsets, sizes = part_of(made)
    held = tensor[tuple(slice(begin, begin + size) for begin, size in zip(offsets, sizes, strict=True))]
    (made.to_local() if is_sharded(made) else made).copy_(held)
    return made


def _has_divided(node: Any) -> bool:
    if isinstance(node, Tensor):
        return is_sharded(node)
    if isinstance(node, dict):
        values: Any = cast("dict[Any, Any]", node).values()
    elif isinstance(node, (list, tuple)):
        values = cast("list[Any]", node)
    else:
        return False
    # Training waits meanwhile, so the hundreds of numbers of a random generator are not looked at one by one.
    return not PLAIN.issuperset(map(type, values)) and any(map(_has_divided, values))


class Layout:
    """How the tensors of a checkpoint are to lie in this run.

    What is kept for a parameter, under its name, is divided as the parameter is: optimizers' states, averages of
    weights, the weights themselves. All else is whole in each process.

    Args:
        model: The model.

    >>> Layout(nn.Linear(1, 1)).is_unsharded
    True
    """

    def __init__(self, model: nn.Module) -> None:
        named = {**dict(model.named_parameters(remove_duplicate=False)), **model.state_dict(keep_vars=True)}
        self._divided: dict[Any, Any] = {name: value for name, value in named.items() if is_sharded(value)}

    @property
    def is_unsharded(self) -> bool:
        """Whether each process has all of the model."""
        return not self._divided

    def empty(
        self, path: Sequence[Any], shape: Sequence[int], dtype: torch.dtype, dims: Sequence[int | None] | None
    ) -> Tensor:
        """Return a tensor without values as one of the checkpoint is to lie.

        Args:
            path: The keys under which the checkpoint has it.
            shape: Of the whole.
            dtype: Its dtype.
            dims: Along which dimension the axes of the devices divided it when it was saved, each with None where all
                had it; None for one that was not divided.
        """
        parameter = self._parameter(path)
        if parameter is None:
            return torch.empty(tuple(shape), dtype=dtype)
        if parameter.shape == torch.Size(shape):
            return torch.empty_like(parameter.detach(), dtype=dtype)
        if dims is None:
            return torch.empty(tuple(shape), dtype=dtype)
        return _empty_beside(parameter, shape, dtype, dims)

    def placed(self, tree: Any, path: Sequence[Any] = ()) -> Any:
        """Return nested containers with their whole tensors divided as they are to lie.

        Args:
            tree: The containers, whose tensors are whole or divided already.
            path: The keys under which a checkpoint has them.
        """
        if self.is_unsharded:
            return tree
        if isinstance(tree, dict):
            items = cast("dict[Any, Any]", tree).items()
            return {key: self.placed(value, (*path, key)) for key, value in items}
        if isinstance(tree, (list, tuple)):
            values = [self.placed(value, (*path, at)) for at, value in enumerate(cast("list[Any]", tree))]
            return values if isinstance(tree, list) else tuple(values)
        parameter = self._parameter(path) if isinstance(tree, Tensor) and not is_sharded(tree) else None
        if parameter is None:
            return tree
        if parameter.shape == tree.shape:
            return shard_like(tree, parameter)
        # Such as the factors of a second moment, beside gradients with which optimizers compute.
        if "optimizers" in path[:2] and tree.dim() > 0:
            return shard_like(tree, _empty_beside(parameter, tree.shape, tree.dtype, ()))
        return tree

    def _parameter(self, path: Sequence[Any]) -> Any:
        """The divided parameter that something is kept for."""
        return next((self._divided[key] for key in reversed(path) if key in self._divided), None)


def _empty_beside(parameter: Any, shape: Sequence[int], dtype: torch.dtype, dims: Sequence[int | None]) -> Tensor:
    """A tensor on the devices of a parameter, divided by the same axes if these are as many as they were."""
    from torch.distributed.tensor import Placement, Replicate, Shard, empty

    mesh = parameter.device_mesh
    placements: list[Placement] = [Replicate()] * mesh.ndim
    if len(dims) == mesh.ndim:
        placements = [Replicate() if dim is None else Shard(dim) for dim in dims]
    made: Tensor = empty(*shape, dtype=dtype, device_mesh=mesh, placements=placements)
    return made
