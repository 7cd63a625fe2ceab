"""Hyperparameters of an optimizer's parameter groups, read and set by name."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from composer._text import did_you_mean

__all__ = ["initial_value", "set_value"]

# Entries of a group that hold several numbers: name -> where it is found.
_PARTS = {"beta1": ("betas", 0), "beta2": ("betas", 1)}


def initial_value(group: dict[str, Any], name: str) -> float:
    """Return what a hyperparameter was before it was scheduled; the group keeps it, as torch keeps ``initial_lr``.

    Args:
        group: A parameter group.
        name: The hyperparameter: "lr", "momentum", "weight_decay", "beta1", ...

    Raises:
        ValueError: The group has none of that name, or it is not a number.

    >>> group = {"lr": 0.1, "betas": (0.9, 0.99)}
    >>> initial_value(group, "lr"), initial_value(group, "beta2"), group["initial_lr"]
    (0.1, 0.99, 0.1)
    """
    key = f"initial_{name}"
    if key not in group:
        value = _value(group, name)
        group[key] = value.clone() if isinstance(value, Tensor) else value
    return float(group[key])


def set_value(group: dict[str, Any], name: str, value: float) -> None:
    """Set a hyperparameter; one that is a tensor stays the same tensor, and no device is waited for.

    Args:
        group: A parameter group.
        name: The hyperparameter.
        value: The value.

    >>> group = {"lr": 0.1, "betas": (0.9, 0.99)}
    >>> set_value(group, "beta1", 0.8)
    >>> group["betas"]
    (0.8, 0.99)
    """
    if name in _PARTS:
        key, index = _PARTS[name]
        parts = group[key]
        if isinstance(parts[index], Tensor):
            parts[index].fill_(value)
        else:
            group[key] = tuple(value if number == index else part for number, part in enumerate(parts))
    elif isinstance(group[name], Tensor):
        group[name].fill_(value)
    else:
        group[name] = value


def _value(group: dict[str, Any], name: str) -> Any:
    """Return a hyperparameter of a group."""
    key, index = _PARTS.get(name, (name, None))
    value = group.get(key)
    if value is not None and index is not None:
        value = value[index]
    if isinstance(value, bool) or not isinstance(value, (int, float, Tensor)):
        known = [
            entry
            for entry in [*group, *(part for part, (whole, _) in _PARTS.items() if whole in group)]
            if not entry.startswith("initial_")
            and isinstance(group.get(entry, 0.0), (int, float, Tensor))
            and not isinstance(group.get(entry), bool)
        ]
        hint = " Momentum is 'beta1' here." if name == "momentum" and "betas" in group else did_you_mean(name, known)
        listed = ", ".join(repr(entry) for entry in known)
        raise ValueError(f"hyperparameter {name!r} is no number of this optimizer.{hint} There are {listed}.")
    return value
