"""Find the device of each tensor reachable from an object, by its path."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from composer.core import Callback, Logger, State

Devices = dict[str, str]

_ELSEWHERE = (State, Logger, type, torch.device, torch.dtype, torch.Generator)


def tensor_devices(thing: Any, name: str = "") -> Devices:
    """Return the device type of each tensor that a thing keeps in containers, attributes and closures of its own.

    Modules that a callback or algorithm refers to belong to the model, and are left out there.
    """
    found: Devices = {}
    _walk(thing, name, found, set(), isinstance(thing, nn.Module))
    return found


def devices_of_state(state: State) -> Devices:
    """Return the devices of all tensors in a checkpoint of the state."""
    found = {f"model.{name}": value.device.type for name, value in state.model.state_dict().items()}
    for index, optimizer in enumerate(state.optimizers):
        for number, parameter in enumerate(p for group in optimizer.param_groups for p in group["params"]):
            found |= tensor_devices(optimizer.state.get(parameter, {}), f"optimizer {index}.{number}")
    for name_of_list in ("algorithms", "callbacks", "schedulers"):
        for each in getattr(state, name_of_list):
            found |= tensor_devices(each, type(each).__name__)
    found |= tensor_devices(dict(state.train_metrics or {}), "metrics") | tensor_devices(
        dict(state.eval_metrics or {}), "eval metrics"
    )
    return found


def differences(one: Devices, other: Devices) -> dict[str, tuple[str, str]]:
    """Return tensors that are on different devices; a tensor of only one side is created when needed."""
    return {name: (device, other[name]) for name, device in one.items() if other.get(name, device) != device}


def _walk(thing: Any, name: str, found: Devices, seen: set[int], through_modules: bool) -> None:
    if isinstance(thing, torch.Tensor):
        found[name] = thing.device.type
        return
    if id(thing) in seen or isinstance(thing, _ELSEWHERE):
        return
    seen.add(id(thing))
    children: dict[Any, Any] = {}
    if isinstance(thing, dict):
        children = thing
    elif isinstance(thing, (list, tuple, set, frozenset)):
        children = dict(enumerate(thing))
    elif isinstance(thing, nn.Module) and not through_modules and not _is_metric(thing):
        return
    elif isinstance(thing, Callback) or type(thing).__module__.startswith(("composer.", "torchmetrics.", "tests.")):
        slots = (slot for cls in type(thing).__mro__ for slot in getattr(cls, "__slots__", ()))
        children = {slot: getattr(thing, slot) for slot in slots if hasattr(thing, slot)}
        children |= getattr(thing, "__dict__", {})
    for key, child in children.items():
        _walk(
            child,
            f"{name}.{key}" if not isinstance(key, torch.Tensor) else f"{name}.tensor",
            found,
            seen,
            through_modules,
        )


def _is_metric(module: nn.Module) -> bool:
    return type(module).__module__.startswith(("torchmetrics.", "composer.metrics."))
