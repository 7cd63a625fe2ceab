"""Collect a value of each rank for a checkpoint: on rank 0, which writes it, or on every rank."""

from __future__ import annotations

import contextlib
from collections.abc import Generator
from contextvars import ContextVar
from typing import Any

from composer import dist

__all__ = ["gathered_on_every_rank", "is_gathered_everywhere", "values_of_ranks"]

_everywhere: ContextVar[bool] = ContextVar("everywhere", default=False)


@contextlib.contextmanager
def gathered_on_every_rank() -> Generator[None]:
    """Let every rank collect the values of all ranks, rather than only rank 0, which writes them into checkpoints.

    >>> with gathered_on_every_rank():
    ...     values_of_ranks("a")
    ['a']
    """
    token = _everywhere.set(True)
    try:
        yield
    finally:
        _everywhere.reset(token)


def is_gathered_everywhere() -> bool:
    """Return whether the block of :func:`gathered_on_every_rank` is running.

    >>> is_gathered_everywhere()
    False
    """
    return _everywhere.get()


def values_of_ranks(value: Any) -> list[Any]:
    """Return what each rank has, on rank 0; an empty list on others. All ranks must call this.

    Args:
        value: Of this rank.

    >>> values_of_ranks("a")
    ['a']
    """
    return (dist.all_gather_object(value) if _everywhere.get() else dist.gather_object(value)) or []
