"""Optimizer state tensors that stay on the CPU, such as step counters, while the rest of the state is on the device."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, cast

from torch import Tensor
from torch.optim import Optimizer

__all__ = ["host_values_back", "map_device_values"]

_READ_BY_HOST = frozenset({"step", "mu_product"})
# State that PyTorch's optimizers read in each step; on the device each read would be a host-device sync.


def map_device_values(optimizer: Optimizer, function: Callable[[Any], Any]) -> None:
    """Apply a function to the values of an optimizer state that belong on the device, in place.

    Args:
        optimizer: The optimizer. If it is capturable or fused, or its class has ``step_on_device = True``, this applies
            to all values.
        function: Returns the new value.

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
    values = cast("dict[Any, Any]", optimizer.state)
    for key, value in values.items():
        if not isinstance(value, dict):  # such as a step count of all parameters
            values[key] = function(value)


def host_values_back(optimizer: Optimizer) -> None:
    """Move values that the host reads back to the CPU, after ``load_state_dict`` has moved all but steps to the device.

    Args:
        optimizer: The optimizer.

    >>> host_values_back(torch.optim.NAdam([torch.ones(1)]))
    """
    for state, on_host in _states(optimizer):
        for name in on_host - {"step"}:
            if isinstance(value := state.get(name), Tensor):
                state[name] = value.cpu()


def _states(optimizer: Optimizer) -> Iterator[tuple[dict[str, Any], frozenset[str]]]:
    """Yield each dict of values, mostly that of a parameter, and the names of its values that the host reads."""
    groups = {id(p): group for group in optimizer.param_groups for p in group["params"]}
    all_move = getattr(optimizer, "step_on_device", False)
    for parameter, state in cast("dict[Any, Any]", optimizer.state).items():
        if not isinstance(state, dict):
            continue
        group = groups.get(id(parameter), {})
        moves = all_move or group.get("capturable") or group.get("fused")
        yield cast("dict[str, Any]", state), frozenset() if moves else _READ_BY_HOST
