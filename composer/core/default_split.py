"""Alias: moved to composer.core.data_spec and composer.core.microbatches; functions that split batches by old names."""

# pyright: reportUnusedFunction=false
# The private functions are for scripts that import them.

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor

from composer.core.data_spec import DataSpec, ensure_data_spec
from composer.core.microbatches import count_samples, split

__all__ = ["DataSpec", "default_split_batch", "ensure_data_spec"]


def default_split_batch(batch: Any, microbatch_size: int) -> Sequence[Any]:
    """Split a batch like :func:`~composer.core.microbatches.split`, with a warning if it is smaller than a microbatch.

    Args:
        batch: The batch.
        microbatch_size: Number of samples in a microbatch.

    Raises:
        NotImplementedError: The batch contains nothing to split.
        ValueError: The size is not a positive integer.

    >>> import torch
    >>> default_split_batch([torch.arange(3), torch.arange(3)], 2)
    [(tensor([0, 1]), tensor([0, 1])), (tensor([2]), tensor([2]))]
    """
    microbatches = split(batch, microbatch_size)
    if len(microbatches) == 1:
        _warn_if_smaller("batch", count_samples(batch), microbatch_size)
    return microbatches


def _split_list(l: Any, microbatch_size: int) -> list[Any]:  # noqa: E741 - callers may pass it by this name
    """Split a list, or another sequence, that has one entry for each sample."""
    _warn_if_smaller("list", len(l), microbatch_size)
    return [l[start : start + microbatch_size] for start in range(0, max(len(l), 1), microbatch_size)]


def _split_tensor(t: Tensor, microbatch_size: int) -> tuple[Tensor, ...]:
    """Split a tensor along its first dimension."""
    _warn_if_smaller("tensor", len(t), microbatch_size)
    return t.split(microbatch_size)


def _split_mapping(m: Mapping[Any, Any], microbatch_size: int) -> Sequence[Any]:
    """Split the values of a mapping."""
    return default_split_batch(m, microbatch_size)


def _check_list_is_primitives(l: Sequence[Any]) -> bool:  # noqa: E741 - callers may pass it by this name
    """Return whether all entries are numbers or strings of the same type."""
    return len({type(entry) for entry in l}) <= 1 and all(isinstance(entry, (int, float, str, bool)) for entry in l)


def _warn_if_smaller(what: str, length: int, microbatch_size: int) -> None:
    if length < microbatch_size:
        message = f"Cannot split {what} of length {length} into batches of size {microbatch_size}; it is not split."
        warnings.warn(message, UserWarning, stacklevel=3)


_default_split_batch = default_split_batch
