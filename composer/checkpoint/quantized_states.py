"""Quantized optimizer states of torchao (``AdamW8bit`` and its siblings), to and from plain tensors.

torchao keeps a moment as a tensor subclass of integer codes, one scale per block and a lookup table. A checkpoint holds
these as plain tensors, so that it loads with ``torch.load(weights_only=True)`` and without torchao.
"""

from __future__ import annotations

import math
from typing import Any, Final, cast

import torch
from torch import Tensor

from composer import trees
from composer._lazy import import_extra
from composer._text import one_of
from composer.dist.dtensor import is_dtensor

__all__ = ["dequantized_parts", "quantized_from_parts"]

# A closed table: the name in a checkpoint never selects what is imported.
_MODULES: Final = {
    "OptimState4bit": "torchao.optim.subclass_4bit",
    "OptimState8bit": "torchao.optim.subclass_8bit",
    "OptimStateFp8": "torchao.optim.subclass_fp8",
}
_CLASS: Final = "torchao_class"
_CONTEXT: Final = "torchao_context"
# Parts have a prefix, since entries of a checkpoint are sharded like the parameter whose name is in their path, and a
# parameter may be called "scale".
_PREFIX: Final = "torchao_"
_LOOKUP_TABLE: Final = "qmap"
_FLOAT8: Final = torch.float8_e4m3fn  # the codes of OptimStateFp8


def dequantized_parts(state: Any, path: str) -> Any:
    """Return the state of one parameter with quantized tensors as dicts of plain tensors.

    The parts of a sharded tensor are sharded along dimension 0, except for the lookup table, which is replicated.

    Args:
        state: The state of a parameter, nested containers.
        path: Name of the parameter, for error messages.

    Raises:
        ValueError: Dimension 0 of a sharded quantized tensor is not divisible by the number of shards.

    >>> dequantized_parts({"step": 1}, "weight")
    {'step': 1}
    """
    return trees.map_collection(state, lambda leaf: _parts(leaf, path))


def quantized_from_parts(state: Any, parameter: Tensor, path: str) -> Any:
    """Return the state of one parameter with the dicts of :func:`dequantized_parts` as quantized tensors.

    Args:
        state: The state of a parameter; tensors are sharded if the parameter is.
        parameter: The parameter.
        path: Name of the parameter, for error messages.

    Raises:
        ValueError: The class is unknown, or a shard would not hold entire blocks.
        MissingConditionalImportError: torchao is not installed.

    >>> quantized_from_parts({"step": 1}, torch.ones(1), "weight")
    {'step': 1}
    """
    if not isinstance(state, dict):
        return state
    values = cast("dict[Any, Any]", state)
    if _CLASS in values:
        return _quantized(values, parameter, path)
    return {key: quantized_from_parts(value, parameter, path) for key, value in values.items()}


def _is_quantized(tensor: Any) -> bool:
    return _MODULES.get(type(tensor).__name__) == type(tensor).__module__


def _parts(leaf: Any, path: str) -> Any:
    if not isinstance(leaf, Tensor):
        return leaf
    whole: Any = leaf
    local: Any = whole.to_local() if is_dtensor(leaf) else leaf
    if not _is_quantized(local):
        return leaf
    names, context = local.__tensor_flatten__()
    parts = {name: _bytes(getattr(local, name)) for name in names}
    if leaf is not local:
        parts = _sharded_parts(parts, whole, path)
    return {
        _CLASS: type(local).__name__,
        # The shape in it is that of the local shard.
        _CONTEXT: [torch.Size(leaf.shape) if isinstance(one, torch.Size) else one for one in context],
        **{_PREFIX + name: part for name, part in parts.items()},
    }


def _bytes(part: Tensor) -> Tensor:
    """Return float8 values as bytes: Gloo has no collectives for them."""
    return part.view(torch.uint8) if part.dtype is _FLOAT8 else part


def _sharded_parts(parts: dict[str, Tensor], whole: Any, path: str) -> dict[str, Tensor]:
    from torch.distributed.tensor import DTensor, Replicate

    shards = _num_shards(whole, path)
    replicated = [Replicate()] * whole.device_mesh.ndim

    def sharded(name: str, part: Tensor) -> Tensor:
        if name == _LOOKUP_TABLE:
            return DTensor.from_local(part, whole.device_mesh, replicated, run_check=False)
        shape = torch.Size((part.shape[0] * shards, *part.shape[1:]))
        return DTensor.from_local(
            part, whole.device_mesh, whole.placements, run_check=False, shape=shape, stride=part.stride()
        )

    return {name: sharded(name, part) for name, part in parts.items()}


def _num_shards(whole: Any, path: str) -> int:
    """Return the number of shards of a tensor, which must be equal."""
    sizes = [
        whole.device_mesh.size(axis) for axis, placement in enumerate(whole.placements) if not placement.is_replicate()
    ]
    number = math.prod(sizes)
    if not all(one.is_replicate() or one.is_shard(0) for one in whole.placements) or whole.shape[0] % number:
        raise ValueError(
            f"{path} of shape {tuple(whole.shape)} is sharded as {tuple(whole.placements)} among {number} ranks, and "
            f"its quantized optimizer state can be saved and loaded only with equal shards of dimension 0. Use a "
            f"number of ranks that divides dimension 0, or an optimizer whose states are not quantized, such as "
            f"composer.optim.DecoupledAdamW."
        )
    return number


def _quantized(saved: dict[str, Any], parameter: Tensor, path: str) -> Tensor:
    name = one_of("class of a quantized optimizer state", str(saved[_CLASS]), tuple(_MODULES))
    cls: Any = getattr(import_extra(_MODULES[name], "quantize", f"the optimizer state of {path}"), name)
    parts = {key.removeprefix(_PREFIX): value for key, value in saved.items() if key not in (_CLASS, _CONTEXT)}
    whole: Any = parameter if is_dtensor(parameter) else None
    if whole is not None:
        _num_shards(whole, path)
        parts = {key: _local_part(key, value, whole, path) for key, value in parts.items()}
    if name == "OptimStateFp8":
        parts["codes"] = parts["codes"].view(_FLOAT8)
    local: Tensor = parameter if whole is None else whole.to_local()
    context = [torch.Size(local.shape) if isinstance(one, (torch.Size, tuple)) else one for one in saved[_CONTEXT]]
    made: Tensor = cls.__tensor_unflatten__(parts, context)
    if made.shape != local.shape:
        raise ValueError(
            f"The optimizer state of {path} has shape {tuple(made.shape)}, but the parameter has "
            f"{tuple(parameter.shape)}. Skip it with load_ignore_keys=['state/optimizers*']."
        )
    if whole is None:
        return made
    from torch.distributed.tensor import DTensor

    return DTensor.from_local(
        made, whole.device_mesh, whole.placements, run_check=False, shape=whole.shape, stride=whole.stride()
    )


def _local_part(name: str, part: Any, whole: Any, path: str) -> Tensor:
    """Return the local shard of a part, however it is sharded now."""
    from torch.distributed.tensor import Replicate

    if not is_dtensor(part):
        return part
    replicated = [Replicate()] * whole.device_mesh.ndim
    if name != _LOOKUP_TABLE and part.shape[0] % _num_shards(whole, path):
        raise ValueError(
            f"The quantized optimizer state of {path} has {part.shape[0]} {name}, which cannot be divided among the "
            f"ranks so that each holds entire blocks. Use fewer ranks, or skip the state with "
            f"load_ignore_keys=['state/optimizers*']."
        )
    return part.redistribute(placements=replicated if name == _LOOKUP_TABLE else whole.placements).to_local()
