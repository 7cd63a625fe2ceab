"""Unshard ``DTensor`` values (FSDP, tensor parallelism) to save full tensors, and shard full tensors to load them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn

from composer import dist, trees
from composer.checkpoint.staging import PLAIN
from composer.dist.dtensor import is_dtensor

__all__ = ["Layout", "has_sharded_tensors", "shard_bounds", "shard_like", "unshard"]


def has_sharded_tensors(content: Any) -> bool:
    """Return whether nested containers have a sharded tensor.

    Args:
        content: Nested dicts, lists and tuples.

    >>> has_sharded_tensors({"weight": torch.ones(1)})
    False
    """
    return dist.is_initialized() and _contains_sharded(content)  # sharding needs a process group


def shard_bounds(tensor: Any) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the offsets and sizes of the local shard in the full tensor.

    Args:
        tensor: A sharded or unsharded tensor.

    >>> shard_bounds(torch.ones(2, 3))
    ((0, 0), (2, 3))
    """
    if not is_dtensor(tensor):
        return (0,) * tensor.dim(), tuple(tensor.shape)
    (chunk,) = tensor.__create_chunk_list__()
    return tuple(chunk.offsets), tuple(chunk.sizes)


@torch.no_grad()
def unshard(content: dict[str, Any]) -> dict[str, Any]:
    """Return a copy with full tensors in the host memory of rank 0.

    All ranks must call this. Tensors are all-gathered one by one, so a device never holds more than one full tensor.

    Args:
        content: Nested containers, the same on all ranks except for the local shards.

    Returns:
        The copy; on other ranks it has empty tensors.

    >>> unshard({"weight": torch.ones(2)})
    {'weight': tensor([1., 1.])}
    """
    is_first = dist.get_global_rank() == 0
    empty = torch.empty(0)
    copies: dict[Any, Tensor] = {}

    def copied(tensor: Tensor) -> Tensor:
        # Tied weights are all-gathered twice: a rank with an empty shard cannot detect that they are tied.
        full = cast("Any", tensor).full_tensor() if is_dtensor(tensor) else tensor
        if not is_first:
            return empty
        local = cast("Any", tensor).to_local() if is_dtensor(tensor) else tensor
        key = (local.device, local.dtype, local.data_ptr(), local.shape, local.stride(), tensor.shape)
        if key not in copies or not local.numel():
            # Where nothing has to be gathered (replicated tensors, meshes of one rank), it is the memory of the run.
            copies[key] = full.detach().to("cpu", copy=full.data_ptr() == local.data_ptr())
        return copies[key]

    return trees.map_tensors(copied, content)


@torch.no_grad()
def shard_like(tensor: Tensor, other: Tensor) -> Tensor:
    """Shard a full tensor in the same way as another tensor.

    Args:
        tensor: The full tensor, on any device; only the local shard is read.
        other: A tensor of the same shape.

    >>> shard_like(torch.ones(2), torch.zeros(2))
    tensor([1., 1.])
    """
    made: Any = torch.empty_like(other.detach(), dtype=tensor.dtype)
    offsets, sizes = shard_bounds(made)
    local = tensor[tuple(slice(begin, begin + size) for begin, size in zip(offsets, sizes, strict=True))]
    (made.to_local() if is_dtensor(made) else made).copy_(local)
    return made


def _contains_sharded(node: Any) -> bool:
    if isinstance(node, Tensor):
        return is_dtensor(node)
    if isinstance(node, dict):
        values: Any = cast("dict[Any, Any]", node).values()
    elif isinstance(node, (list, tuple)):
        values = cast("list[Any]", node)
    else:
        return False
    # Training waits for this, so the hundreds of numbers of a random state are not inspected one by one.
    return not PLAIN.issuperset(map(type, values)) and any(map(_contains_sharded, values))


class Layout:
    """How the tensors of a checkpoint are sharded in this run.

    A tensor stored under the name of a parameter is sharded like the parameter: weights, optimizer state, averaged
    weights. All other tensors are replicated.

    Args:
        model: The model.

    >>> Layout(nn.Linear(1, 1)).is_unsharded
    True
    """

    def __init__(self, model: nn.Module) -> None:
        named = {**dict(model.named_parameters(remove_duplicate=False)), **model.state_dict(keep_vars=True)}
        self._sharded: dict[Any, Any] = {name: value for name, value in named.items() if is_dtensor(value)}

    @property
    def is_unsharded(self) -> bool:
        """Whether the model is not sharded."""
        return not self._sharded

    def empty(
        self, path: Sequence[Any], shape: Sequence[int], dtype: torch.dtype, dims: Sequence[int | None] | None
    ) -> Tensor:
        """Return an uninitialized tensor, sharded as the tensor of the checkpoint should be.

        Args:
            path: The keys of the tensor in the checkpoint.
            shape: Shape of the full tensor.
            dtype: Its dtype.
            dims: The dimension along which each mesh axis sharded it when it was saved, None for an axis that
                replicated it; None for a tensor that was not sharded.
        """
        parameter = self._parameter(path)
        if parameter is None:
            return torch.empty(tuple(shape), dtype=dtype)
        if parameter.shape == torch.Size(shape):
            return torch.empty_like(parameter.detach(), dtype=dtype)
        if dims is None:
            return torch.empty(tuple(shape), dtype=dtype)
        return _empty_on_mesh(parameter, shape, dtype, dims)

    def shard(self, tree: Any, path: Sequence[Any] = ()) -> Any:
        """Return nested containers with their full tensors sharded for this run.

        Args:
            tree: The containers; tensors that are sharded already stay as they are.
            path: The keys of the containers in the checkpoint.
        """
        if self.is_unsharded:
            return tree
        if isinstance(tree, dict):
            items = cast("dict[Any, Any]", tree).items()
            return {key: self.shard(value, (*path, key)) for key, value in items}
        if isinstance(tree, (list, tuple)):
            values = [self.shard(value, (*path, at)) for at, value in enumerate(cast("list[Any]", tree))]
            return values if isinstance(tree, list) else tuple(values)
        parameter = self._parameter(path) if isinstance(tree, Tensor) and not is_dtensor(tree) else None
        if parameter is None:
            return tree
        if parameter.shape == tree.shape:
            return shard_like(tree, parameter)
        # Such as the factors of a second moment (Adafactor), which optimizers combine with sharded gradients.
        if "optimizers" in path[:2] and tree.dim() > 0:
            return shard_like(tree, _empty_on_mesh(parameter, tree.shape, tree.dtype, ()))
        return tree

    def _parameter(self, path: Sequence[Any]) -> Any:
        """Return the sharded parameter that an entry belongs to."""
        return next((self._sharded[key] for key in reversed(path) if key in self._sharded), None)


def _empty_on_mesh(parameter: Any, shape: Sequence[int], dtype: torch.dtype, dims: Sequence[int | None]) -> Tensor:
    """Return an empty tensor on the mesh of a parameter, sharded as saved if the number of mesh axes is the same."""
    from torch.distributed.tensor import Placement, Replicate, Shard, empty

    mesh = parameter.device_mesh
    placements: list[Placement] = [Replicate()] * mesh.ndim
    if len(dims) == mesh.ndim:
        placements = [Replicate() if dim is None else Shard(dim) for dim in dims]
    made: Tensor = empty(*shape, dtype=dtype, device_mesh=mesh, placements=placements)
    return made
