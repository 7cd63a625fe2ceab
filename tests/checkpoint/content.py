"""Compare the contents of checkpoints."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch


def same(one: Any, other: Any) -> bool:
    """Whether two nested values are equal, tensors bit for bit."""
    if isinstance(one, torch.Tensor) or isinstance(other, torch.Tensor):
        alike = type(one) is type(other) and one.dtype == other.dtype and one.device == other.device
        return alike and one.shape == other.shape and torch.equal(one, other)
    if isinstance(one, np.ndarray):
        return isinstance(other, np.ndarray) and one.dtype == other.dtype and np.array_equal(one, other)
    if isinstance(one, dict):
        return isinstance(other, dict) and one.keys() == other.keys() and all(same(one[k], other[k]) for k in one)
    if isinstance(one, (list, tuple)):
        return type(one) is type(other) and len(one) == len(other) and all(map(same, one, other))
    return bool(one == other)
