"""Which ranks log, and run names with ranks."""

from __future__ import annotations

from composer import dist

__all__ = ["logs_here", "with_rank"]


def logs_here(rank_zero_only: bool) -> bool:
    """Return whether this rank logs.

    Args:
        rank_zero_only: Whether only rank 0 logs.

    >>> logs_here(rank_zero_only=True)
    True
    """
    return not rank_zero_only or dist.get_global_rank() == 0


def with_rank(name: str, rank_zero_only: bool) -> str:
    """Return the name of a tracker's run, with the rank appended if each rank has a separate run.

    Args:
        name: The name of the run.
        rank_zero_only: Whether only rank 0 logs.

    >>> with_rank("night", rank_zero_only=False)
    'night'
    """
    return name if rank_zero_only or dist.get_world_size() == 1 else f"{name}-rank{dist.get_global_rank()}"
