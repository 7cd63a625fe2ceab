"""Arguments as hyperparameters that a tracker can show."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

import torch

from composer.core.time import Time

__all__ = ["describe"]

_PLAIN = (bool, int, float, str)


def describe(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return arguments as plain values: objects by class, with those of their attributes that are plain.

    Args:
        arguments: Values by name; those that are None are left out.

    >>> describe({"seed": 1, "optimizers": torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=0.1)})[
    ...     "optimizers"
    ... ]["lr"]
    0.1
    """
    return {name: _plain(value) for name, value in arguments.items() if value is not None}


def _plain(value: Any) -> Any:
    if value is None or isinstance(value, _PLAIN):
        return value
    if isinstance(value, Time):
        return str(value)
    if isinstance(value, (list, tuple)):
        return [_plain(entry) for entry in cast("list[Any]", value)]
    if isinstance(value, Mapping):
        return {str(key): _plain(entry) for key, entry in cast("Mapping[Any, Any]", value).items()}
    kind = type(value).__name__
    if isinstance(value, torch.optim.Optimizer):
        defaults: dict[str, Any] = value.defaults
        return {"class": kind, **{name: entry for name, entry in defaults.items() if isinstance(entry, _PLAIN)}}
    attributes: dict[str, Any] = getattr(value, "__dict__", {})
    shown = {
        name: _plain(entry)
        for name, entry in attributes.items()
        if not name.startswith("_") and isinstance(entry, (*_PLAIN, Time))
    }
    return {"class": kind, **shown}
