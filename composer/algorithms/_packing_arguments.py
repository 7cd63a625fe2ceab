"""The arguments of sequence packing: check them, and find the padding value of each key."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from composer._text import did_you_mean

__all__ = [
    "ADDED",
    "IGNORED",
    "check_causal",
    "check_ids",
    "check_padding",
    "fill_values",
    "stored_value",
]

IGNORED = -100
# Keys that packing adds, whose padding is 0.
ADDED = ("position_ids", "document_ids", "loss_weights")


def check_causal(causal: object) -> None:
    """Raise unless it is a boolean: "no" would be true.

    Args:
        causal: The argument of the user.

    Raises:
        TypeError: It is not.
    """
    if not isinstance(causal, (bool, np.bool_)):
        raise TypeError(f"causal must be True or False, but got {causal!r}.")


def check_ids(document_ids: object, may_be_empty: bool = True) -> None:
    """Raise unless it is a tensor of two dimensions.

    Args:
        document_ids: The argument of the user.
        may_be_empty: Whether it may have no entries.

    Raises:
        TypeError: It is not a tensor.
        ValueError: It has another shape.
    """
    if not isinstance(document_ids, Tensor):
        raise TypeError(
            f"document_ids must be a tensor of shape (B, S), as pack_sequences returns it, but is a "
            f"{type(document_ids).__name__}. Convert it with torch.as_tensor."
        )
    if document_ids.ndim != 2 or (not may_be_empty and document_ids.numel() == 0):
        remedy = (
            "Pass document_ids[None] for a single row." if document_ids.ndim == 1 else "Pass one id for each token."
        )
        raise ValueError(
            f"document_ids must have the shape (B, S), as pack_sequences returns it, but has the shape "
            f"{tuple(document_ids.shape)}. {remedy}"
        )


def check_padding(padding: object) -> None:
    """Raise unless it is a mapping, or None.

    Args:
        padding: The argument of the user.

    Raises:
        TypeError: It is neither.
    """
    if padding is not None and not isinstance(padding, Mapping):
        raise TypeError(
            f"padding must be a mapping from keys to values, but got {padding!r}. Pass {{'input_ids': {padding!r}}} "
            f"for the padding of tokens."
        )


def fill_values(padding: Mapping[str, float], keys: Sequence[str]) -> dict[str, float]:
    """Return the padding value by key, where it is not 0.

    Args:
        padding: The argument of the user.
        keys: The keys of the packed batch.

    Raises:
        ValueError: A key is unknown, or has a padding of its own.

    >>> fill_values({"input_ids": 7}, ["input_ids", "labels"])
    {'labels': -100, 'input_ids': 7}
    """
    for key, value in padding.items():
        if key in ADDED and value != 0:
            raise ValueError(
                f"padding[{key!r}] is {value!r}, but packing adds {key}, whose padding is 0. Leave it out."
            )
        if key not in keys:
            hint = did_you_mean(str(key), keys) or " Leave it out."
            raise ValueError(f"padding has the key {key!r}, which is not among {', '.join(keys)}.{hint}")
    return {"labels": IGNORED, **padding}


def stored_value(key: str, value: float, dtype: torch.dtype) -> float:
    """Return a padding value, if a tensor can hold it.

    Args:
        key: The key, for the message.
        value: The padding value.
        dtype: The dtype of the values of the key.

    Raises:
        ValueError: It cannot.

    >>> stored_value("input_ids", 7.0, torch.int64)
    7.0
    """
    try:
        stored = torch.full((), value, dtype=dtype).item()
    except (TypeError, RuntimeError):
        stored = None
    # A float may be rounded, but not to infinity.
    is_held = stored is not None and (
        stored == value or (dtype.is_floating_point and math.isinf(value) == math.isinf(stored))
    )
    if not is_held:
        raise ValueError(f"padding[{key!r}] must be a value of {dtype}, as the values of the key are, not {value!r}.")
    return value
