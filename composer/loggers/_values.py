"""Convert logged values to numbers and to JSON."""

from __future__ import annotations

import math
from collections.abc import Mapping
from numbers import Integral, Real
from typing import Any

import numpy as np
from torch import Tensor

__all__ = ["as_number", "to_json", "without_tensor"]


def as_number(value: Any) -> int | float | None:
    """Return a logged value as a number, or None if it is not one.

    Args:
        value: A number, boolean, tensor or array of one element, or any other value.

    >>> import torch
    >>> [as_number(value) for value in (True, 2, torch.tensor([0.5]), "text", torch.zeros(2))]
    [1, 2, 0.5, None, None]
    """
    if isinstance(value, Tensor):
        value = value.item() if value.numel() == 1 else None
    elif isinstance(value, (np.ndarray, np.generic)):
        value = value.item() if value.size == 1 else None
    if isinstance(value, Integral):
        return int(value)
    return float(value) if isinstance(value, Real) else None


def without_tensor(value: Any) -> Any:
    """Convert a tensor of one element to a number, and return other values unchanged.

    Args:
        value: Any value.

    >>> import torch
    >>> [without_tensor(value) for value in (torch.tensor(0.5), True, "text")]
    [0.5, True, 'text']
    """
    return value.item() if isinstance(value, Tensor) and value.numel() == 1 else value


def to_json(value: Any) -> Any:
    """Convert a value to JSON types: numbers, strings, booleans, None, lists and dictionaries.

    Tensors and arrays become numbers or lists, other objects their text. Numbers that JSON lacks become ``"NaN"``,
    ``"Infinity"`` and ``"-Infinity"``, which ``float`` parses.

    Args:
        value: Any value.

    >>> import torch
    >>> to_json({"a": torch.tensor([1, 2]), 3: (float("nan"), None, torch.float32)})
    {'a': [1, 2], '3': ['NaN', None, 'torch.float32']}
    """
    if value is None or isinstance(value, (str, bool)):
        return str(value) if isinstance(value, str) else value
    if isinstance(value, Tensor):
        return to_json(value.tolist())
    if isinstance(value, (np.ndarray, np.generic)):
        return to_json(value.tolist())
    if isinstance(value, Integral):
        return int(value)
    if isinstance(value, Real):
        number = float(value)
        if math.isfinite(number):
            return number
        return "NaN" if math.isnan(number) else "Infinity" if number > 0 else "-Infinity"
    if isinstance(value, Mapping):
        return {str(key): to_json(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [to_json(item) for item in value]
    if isinstance(value, (set, frozenset)):
        return sorted((to_json(item) for item in value), key=str)
    return str(value)
