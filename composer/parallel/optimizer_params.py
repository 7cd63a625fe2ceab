"""Keeping optimizers in step with parameters that are replaced by divided ones."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.optim import LBFGS, Optimizer

from composer.optim.sharded_muon import step_sharded

__all__ = ["Names", "check_elementwise", "follow", "shard_optimizers"]


class Names:
    """The parameters of a model by name, as they are now, to find what replaces each.

    Args:
        model: The model.

    >>> model = nn.Linear(1, 1)
    >>> names, old = Names(model), model.weight
    >>> model.weight = nn.Parameter(torch.ones(1, 1))
    >>> names.replacements(model)[id(old)] is model.weight
    True
    """

    def __init__(self, model: nn.Module) -> None:
        # Kept, so that nothing else comes to have their identity.
        self._before = dict(model.named_parameters())

    def replacements(self, model: nn.Module) -> dict[int, nn.Parameter]:
        """Return the new parameters by the identity of the old ones.

        Args:
            model: The model, whose names are what they were.
        """
        after = dict(model.named_parameters())
        return {id(old): after[name] for name, old in self._before.items()}


def check_elementwise(optimizer: Optimizer) -> None:
    """Refuse an optimizer that sees all parameters as one vector, which no process has.

    Args:
        optimizer: For parameters that are divided.

    Raises:
        ValueError: It is one.

    >>> check_elementwise(torch.optim.SGD([nn.Parameter(torch.ones(1))]))
    """
    if isinstance(getattr(optimizer, "base_optimizer", optimizer), LBFGS):
        raise ValueError(
            "LBFGS sees all parameters as one vector, but each process has parts of them only; train with data "
            "parallelism (parallelism_config=None), or with another optimizer."
        )


def follow(optimizers: Iterable[Optimizer], replacements: Mapping[int, nn.Parameter]) -> None:
    """Put new parameters into the places of the old ones, and divide the states as the parameters are.

    Groups keep their order and settings, and the very lists that schedules and wrappers of optimizers may hold.

    Args:
        optimizers: What they hold beside the parameters replaced stays.
        replacements: New parameters by the identity of the old ones.

    >>> old, new = nn.Parameter(torch.zeros(2)), nn.Parameter(torch.ones(2))
    >>> optimizer = torch.optim.SGD([old], lr=0.1)
    >>> follow([optimizer], {id(old): new})
    >>> optimizer.param_groups[0]["params"][0] is new
    True
    """
    for optimizer in optimizers:
        states: Any = optimizer.state
        kept = list(states.items())
        states.clear()  # and filled again, in the order in which it was
        for old, values in kept:
            new = replacements.get(id(old), old)
            states[new] = (
                {name: _divided(value, old, new) for name, value in values.items()} if new is not old else values
            )
        for group in optimizer.param_groups:
            parameters: list[nn.Parameter] = group["params"]
            parameters[:] = [replacements.get(id(parameter), parameter) for parameter in parameters]


def shard_optimizers(optimizers: Sequence[Optimizer], replacements: Mapping[int, nn.Parameter]) -> None:
    """Make optimizers step parameters that have been divided.

    Args:
        optimizers: What they hold beside the parameters replaced stays.
        replacements: New parameters by the identity of the old ones.

    Raises:
        ValueError: One sees all parameters as one vector.

    >>> shard_optimizers([torch.optim.SGD([nn.Parameter(torch.ones(1))])], {})
    """
    follow(optimizers, replacements)
    for optimizer in optimizers:
        check_elementwise(optimizer)
        step_sharded(optimizer)


def _divided(value: Any, old: Tensor, new: Tensor) -> Any:
    """A part of an optimizer's state, divided as its parameter is if it has its shape."""
    if not isinstance(value, Tensor) or value.shape != old.shape or not isinstance(new, DTensor):
        return value
    if isinstance(value, DTensor):
        return value
    divided = cast(Any, new)
    mesh, places = divided.device_mesh, divided.placements
    local = divided.to_local()
    # All processes have the whole; none has to be sent anything.
    made: Any = distribute_tensor(value.detach().to(mesh.device_type), mesh, places, src_data_rank=None)
    part = made.to_local().to(local.device, copy=True, memory_format=torch.contiguous_format)
    return DTensor.from_local(part, mesh, places, run_check=False, shape=new.shape, stride=new.stride())
