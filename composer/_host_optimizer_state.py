"""What optimizers keep in tensors that lie on the host beside a state on the device."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, cast

from torch import Tensor
from torch.optim import Optimizer

__all__ = ["host_values_back", "map_device_values"]

_READ_BY_HOST = frozenset({"step", "mu_product"})
# What optimizers of PyTorch read in each step; on the device each would be a wait.


def map_device_values(optimizer: Optimizer, function: Callable[[Any], Any]) -> None:
    """Replace the values of a state that belong on the device, in place.

    Args:
        optimizer: One that is capturable or fused, or whose class has ``step_on_device = True``, has all of them there.
        function: Returns the new value of one.

    >>> from torch import nn
    >>> optimizer = torch.optim.Adam([parameter := nn.Parameter(torch.ones(1))])
    >>> parameter.grad = torch.ones(1)
    >>> optimizer.step()
    >>> map_device_values(optimizer, lambda value: value.to("meta"))
    >>> sorted((name, value.device.type) for name, value in optimizer.state[parameter].items())
    [('exp_avg', 'meta'), ('exp_avg_sq', 'meta'), ('step', 'cpu')]
    """
    for state, on_host in _states(optimizer):
        for name, value in state.items():
            if name not in on_host:
                state[name] = function(value)


def host_values_back(optimizer: Optimizer) -> None:
    """Put values that the host reads back there, after ``load_state_dict``, which moves all but steps to the device.

    Args:
        optimizer: The optimizer.

    >>> host_values_back(torch.optim.NAdam([torch.ones(1)]))
    """
    for state, on_host in _states(optimizer):
        for name in on_host - {"step"}:
            if isinstance(value := state.get(name), Tensor):
                state[name] = value.cpu()


def _states(optimizer: Optimizer) -> Iterator[tuple[dict[str, Any], frozenset[str]]]:
    """The state of each parameter, and the names of what the host reads of it."""
    groups = {id(p): group for group in optimizer.param_groups for p in group["params"]}
    all_move = getattr(optimizer, "step_on_device", False)
    for parameter, state in optimizer.state.items():
        group = groups.get(id(parameter), {})
        moves = all_move or group.get("capturable") or group.get("fused")
        yield cast("dict[str, Any]", state), frozenset() if moves else _READ_BY_HOST
