"""Read and set hyperparameters of parameter groups by name, such as "lr", "momentum" or "beta1"."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from composer._text import did_you_mean

__all__ = ["initial_value", "set_value"]

# Hyperparameters stored in a tuple: name -> (key of the tuple in the group, index).
_TUPLE_ENTRIES = {"beta1": ("betas", 0), "beta2": ("betas", 1)}


def initial_value(group: dict[str, Any], name: str) -> float:
    """Return the unscheduled value of a hyperparameter; stored in the group, like torch's ``initial_lr``.

    Args:
        group: A parameter group.
        name: The hyperparameter: "lr", "momentum", "weight_decay", "beta1", ...

    Raises:
        ValueError: The group has no such hyperparameter, or it is not a number.

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
    """Set a hyperparameter; a tensor is filled in place, without device synchronization.

    Args:
        group: A parameter group.
        name: The hyperparameter.
        value: The value.

    >>> group = {"lr": 0.1, "betas": (0.9, 0.99)}
    >>> set_value(group, "beta1", 0.8)
    >>> group["betas"]
    (0.8, 0.99)
    """
    if name in _TUPLE_ENTRIES:
        key, index = _TUPLE_ENTRIES[name]
        entries = group[key]
        if isinstance(entries[index], Tensor):
            entries[index].fill_(value)
        else:
            group[key] = tuple(value if number == index else entry for number, entry in enumerate(entries))
    elif isinstance(group[name], Tensor):
        group[name].fill_(value)
    else:
        group[name] = value


def _value(group: dict[str, Any], name: str) -> Any:
    """Return a hyperparameter of a group."""
    key, index = _TUPLE_ENTRIES.get(name, (name, None))
    value = group.get(key)
    if value is not None and index is not None:
        value = value[index]
    if isinstance(value, bool) or not isinstance(value, (int, float, Tensor)):
        known = [
            entry
            for entry in [*group, *(alias for alias, (tuple_key, _) in _TUPLE_ENTRIES.items() if tuple_key in group)]
            if not entry.startswith("initial_")
            and isinstance(group.get(entry, 0.0), (int, float, Tensor))
            and not isinstance(group.get(entry), bool)
        ]
        hint = " Momentum is 'beta1' here." if name == "momentum" and "betas" in group else did_you_mean(name, known)
        listed = ", ".join(repr(entry) for entry in known)
        raise ValueError(f"hyperparameter {name!r} is not a number in this optimizer.{hint} Available: {listed}.")
    return value
