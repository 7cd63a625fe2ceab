"""Optimizers that wrap another one, such as :class:`.SAMOptimizer`, and store it as ``base_optimizer``."""

from __future__ import annotations

from typing import Any

from torch.optim import Optimizer

__all__ = ["is_or_wraps", "unwrapped"]


def unwrapped(optimizer: Any) -> Any:
    """Return the optimizer that an optimizer wraps, or itself if it wraps none.

    Args:
        optimizer: The optimizer.

    >>> optimizer = torch.optim.SGD([torch.zeros(1)])
    >>> unwrapped(optimizer) is optimizer
    True
    """
    return getattr(optimizer, "base_optimizer", optimizer)


def is_or_wraps(optimizer: Optimizer, other: Any) -> bool:
    """Return whether an optimizer is another one or wraps it, so that both have the same parameter groups.

    Args:
        optimizer: The optimizer, of a trainer.
        other: The other one, of a schedule.

    >>> from composer.algorithms.sam import SAMOptimizer
    >>> optimizer = torch.optim.SGD([torch.zeros(1)])
    >>> is_or_wraps(SAMOptimizer(optimizer), optimizer), is_or_wraps(optimizer, SAMOptimizer(optimizer))
    (True, False)
    """
    while optimizer is not other:
        inner = unwrapped(optimizer)
        if inner is optimizer:
            return False
        optimizer = inner
    return True
