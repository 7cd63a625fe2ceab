"""The devices of all tensors that an object holds, by path."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from composer.core import Callback, Logger, State

Places = dict[str, str]

_ELSEWHERE = (State, Logger, type, torch.device, torch.dtype, torch.Generator)


def places(thing: Any, name: str = "") -> Places:
    """Return the device type of each tensor that a thing keeps in containers, attributes and closures of its own.

    Modules that a callback or algorithm refers to belong to the model, and are left out there.
    """
    found: Places = {}
    _walk(thing, name, found, set(), isinstance(thing, nn.Module))
    return found


def places_of(state: State) -> Places:
    """Return the places of all that a checkpoint is made of."""
    found = {f"model.{name}": value.device.type for name, value in state.model.state_dict().items()}
    for place, optimizer in enumerate(state.optimizers):
        for number, parameter in enumerate(p for group in optimizer.param_groups for p in group["params"]):
            found |= places(optimizer.state.get(parameter, {}), f"optimizer {place}.{number}")
    for kind in ("algorithms", "callbacks", "schedulers"):
        for each in getattr(state, kind):
            found |= places(each, type(each).__name__)
    found |= places(dict(state.train_metrics or {}), "metrics") | places(dict(state.eval_metrics or {}), "eval metrics")
    return found


def differences(one: Places, other: Places) -> dict[str, tuple[str, str]]:
    """Return what lies in two different places; what only one of both has is made when it is needed."""
    return {name: (place, other[name]) for name, place in one.items() if other.get(name, place) != place}


def _walk(thing: Any, name: str, found: Places, seen: set[int], through_modules: bool) -> None:
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
        slots = (slot for kind in type(thing).__mro__ for slot in getattr(kind, "__slots__", ()))
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
