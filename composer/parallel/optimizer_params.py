"""Swap sharded parameters into optimizers, and shard the optimizer states."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.optim import LBFGS, Optimizer

from composer.optim.sharded_muon import step_sharded
from composer.optim.wrapped_optimizer import unwrapped

__all__ = ["ParameterNames", "check_optimizer_supports_sharding", "shard_optimizers", "swap_parameters"]


class ParameterNames:
    """A snapshot of a model's parameters by name, to find the replacement of each.

    Args:
        model: The model.

    >>> model = nn.Linear(1, 1)
    >>> names, old = ParameterNames(model), model.weight
    >>> model.weight = nn.Parameter(torch.ones(1, 1))
    >>> names.replacements(model)[id(old)] is model.weight
    True
    """

    def __init__(self, model: nn.Module) -> None:
        # Keep the parameters alive, so that their ids are not reused.
        self._before = dict(model.named_parameters())

    def replacements(self, model: nn.Module) -> dict[int, nn.Parameter]:
        """Return the new parameters by the ``id`` of the old ones.

        Args:
            model: The model, with unchanged parameter names.
        """
        after = dict(model.named_parameters())
        return {id(old): after[name] for name, old in self._before.items()}


def check_optimizer_supports_sharding(optimizer: Optimizer) -> None:
    """Raise an error for an optimizer that needs all parameters as one vector, which no rank has.

    Args:
        optimizer: An optimizer of sharded parameters.

    Raises:
        ValueError: The optimizer is LBFGS.

    >>> check_optimizer_supports_sharding(torch.optim.SGD([nn.Parameter(torch.ones(1))]))
    """
    if isinstance(unwrapped(optimizer), LBFGS):
        raise ValueError(
            "LBFGS needs all parameters as one vector, but each rank has only a shard of them. Use data parallelism "
            "(parallelism_config=None) or another optimizer."
        )


def swap_parameters(optimizers: Iterable[Optimizer], replacements: Mapping[int, nn.Parameter]) -> None:
    """Replace parameters in optimizers, and shard the optimizer states as the new parameters are.

    Parameter groups keep their order, settings and list objects, to which schedulers and wrappers may hold references.

    Args:
        optimizers: The optimizers; parameters without a replacement stay.
        replacements: New parameters by the ``id`` of the old ones.

    >>> old, new = nn.Parameter(torch.zeros(2)), nn.Parameter(torch.ones(2))
    >>> optimizer = torch.optim.SGD([old], lr=0.1)
    >>> swap_parameters([optimizer], {id(old): new})
    >>> optimizer.param_groups[0]["params"][0] is new
    True
    """
    for optimizer in optimizers:
        states: Any = optimizer.state
        kept = list(states.items())
        states.clear()  # refilled below in the same order
        for old, values in kept:
            new = replacements.get(id(old), old)
            states[new] = (
                {name: _shard_state(value, old, new) for name, value in values.items()} if new is not old else values
            )
        for group in optimizer.param_groups:
            parameters: list[nn.Parameter] = group["params"]
            parameters[:] = [replacements.get(id(parameter), parameter) for parameter in parameters]


def shard_optimizers(optimizers: Sequence[Optimizer], replacements: Mapping[int, nn.Parameter]) -> None:
    """Make optimizers step parameters that have been sharded.

    Args:
        optimizers: The optimizers; parameters without a replacement stay.
        replacements: New parameters by the ``id`` of the old ones.

    Raises:
        ValueError: An optimizer is LBFGS, which needs all parameters as one vector.

    >>> shard_optimizers([torch.optim.SGD([nn.Parameter(torch.ones(1))])], {})
    """
    swap_parameters(optimizers, replacements)
    for optimizer in optimizers:
        check_optimizer_supports_sharding(optimizer)
        step_sharded(optimizer)
        _step_one_by_one(optimizer)


def _step_one_by_one(optimizer: Optimizer) -> None:
    """Leave torch's foreach kernels, its default on CUDA, where a group has DTensors of several meshes or of none.

    The kernels take DTensors of one mesh only, and tensor parallelism leaves what is not in its plan as it is.
    """
    for group in optimizer.param_groups:
        meshes = {getattr(parameter, "device_mesh", None) for parameter in group["params"]}
        if len(meshes) > 1 and group.get("foreach", False) is None:
            group["foreach"] = False


def _shard_state(value: Any, old: Tensor, new: Tensor) -> Any:
    """Return an optimizer state, sharded as its parameter if it has the parameter's shape."""
    if not isinstance(value, Tensor) or value.shape != old.shape or not isinstance(new, DTensor):
        return value
    if isinstance(value, DTensor):
        return value
    sharded = cast(Any, new)
    mesh, placements = sharded.device_mesh, sharded.placements
    local = sharded.to_local()
    # All ranks have the full state, so nothing is communicated.
    state: Any = distribute_tensor(value.detach().to(mesh.device_type), mesh, placements, src_data_rank=None)
    shard = state.to_local().to(local.device, copy=True, memory_format=torch.contiguous_format)
    return DTensor.from_local(shard, mesh, placements, run_check=False, shape=new.shape, stride=new.stride())
