"""Check and convert the numbers of samples and tokens that a user's functions return."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping
from typing import Any, cast

from torch import Tensor

from composer.core.types import Batch

__all__ = ["as_quantity", "as_tokens", "call_count", "count_targets", "entry_of", "takes_type"]

_IGNORED = -100
_COUNTER = "get_num_tokens_in_batch"


def as_quantity(what: str, value: Any) -> int | float:
    """Check a number of samples or tokens that a user's function returned, and convert it from a 0-d tensor or array.

    Args:
        what: The name of the function, for the error message.
        value: The returned value.

    Raises:
        TypeError: It is not a number.
        ValueError: It is negative, infinite or NaN.

    >>> import torch
    >>> (
    ...     as_quantity("get_num_samples_in_batch", torch.tensor(3)),
    ...     as_quantity("get_num_samples_in_batch", 0.5),
    ... )
    (3, 0.5)
    """
    number = value.item() if getattr(value, "shape", None) == () else value
    if isinstance(number, bool) or not isinstance(number, (int, float)):
        raise TypeError(f"{what} must return a number, but returned {value!r}.")
    if not 0 <= number < math.inf:
        raise ValueError(f"{what} must return a number of 0 or more, but returned {value!r}.")
    return number


def as_tokens(counted: Any) -> int:
    """Return the number of tokens that the timestamp counts.

    Args:
        counted: The result of :meth:`DataSpec.__tokens__`.

    Raises:
        TypeError: It is neither an integer nor a mapping with one.
        ValueError: It is negative, or a mapping without ``"total"``.

    >>> import torch
    >>> as_tokens({"total": torch.tensor(5), "loss_generating": 2})
    5
    """
    if type(counted) is int and counted >= 0:  # the usual case first: this runs in each step
        return counted
    total = entry_of(counted, "total")
    number = as_quantity(_COUNTER, total)
    # The sum of a float mask is an integer value in a float tensor, which is accepted.
    if isinstance(total, float) or number % 1:
        raise TypeError(f"{_COUNTER} must return an integer number of tokens, but returned {total!r}.")
    return int(number)


def count_targets(batch: Batch) -> Tensor | None:
    """Return the number of ``"labels"`` of a batch that are not -100, as a tensor on their device; None without labels.

    Args:
        batch: The batch.

    >>> import torch
    >>> count_targets({"labels": torch.tensor([[1, 2, -100]])})
    tensor(2)
    """
    labels = cast("Mapping[str, Any]", batch).get("labels") if isinstance(batch, Mapping) else None
    return (labels != _IGNORED).sum() if isinstance(labels, Tensor) else None


def entry_of(counted: Any, token_type: str) -> Any:
    """Return a token count, or its entry for a type if it is a mapping.

    Args:
        counted: The result of :meth:`DataSpec.__tokens__`.
        token_type: The type of tokens.

    Raises:
        ValueError: The mapping has no such entry.

    >>> entry_of({"total": 5}, "total"), entry_of(5, "total")
    (5, 5)
    """
    if not isinstance(counted, Mapping):
        return counted
    if token_type not in counted:
        raise ValueError(
            f"{_COUNTER} returned a mapping without {token_type!r}; it has {sorted(map(str, counted))}. "
            f"Add that entry, or return a number."
        )
    return counted[token_type]


def call_count(count: Callable[..., Any], batch: Batch, token_type: str) -> Any:
    """Call a counting method, which may be custom and take no token type.

    Args:
        count: The method.
        batch: The batch.
        token_type: The type of tokens, passed if the method takes it.

    >>> call_count(len, "abc", "loss_generating")
    3
    """
    return count(batch, token_type) if token_type != "total" and takes_type(count) else count(batch)


def takes_type(count: Callable[..., Any]) -> bool:
    """Return whether a function that counts tokens takes the token type as its second argument.

    Args:
        count: The function.

    >>> takes_type(lambda batch: 1), takes_type(lambda batch, token_type="total": 1)
    (False, True)
    """
    try:
        inspect.signature(count).bind(None, "loss_generating")
    except TypeError:
        return False
    return True
