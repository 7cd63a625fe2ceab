"""Remove fake tensors from caches in which a model has left them, such as a mask in a ``functools.lru_cache``."""

from __future__ import annotations

import functools
import gc
from collections.abc import Sequence
from typing import Any, cast

from torch import Tensor

__all__ = ["remove_from_caches"]

# A cached value may be a tuple of tensors, or a dict of them by layer.
_DEPTH = 3


def remove_from_caches(tensors: Sequence[Tensor]) -> None:
    """Remove tensors from caches, so that what they hold is computed again.

    A ``functools.lru_cache`` is cleared, and entries of dicts are removed; global variables and attributes become None.

    Args:
        tensors: The tensors.

    >>> import torch
    >>> mask = functools.lru_cache(lambda size: torch.ones(size, size))
    >>> remove_from_caches([mask(4)])
    >>> mask.cache_info().currsize
    0
    """
    is_frozen = gc.get_freeze_count() > 0
    if is_frozen:
        gc.unfreeze()  # or their caches would not be found
    for tensor in tensors:
        if not _clear_function_caches(tensor, _DEPTH):
            for holder in gc.get_referrers(tensor):
                if holder is not tensors:
                    _remove(holder, tensor)
    if is_frozen:
        gc.freeze()


def _clear_function_caches(value: object, depth: int) -> bool:
    """Clear the caches that hold a value, also inside of containers; return whether there was one."""
    cleared = False
    for holder in gc.get_referrers(value):
        if isinstance(holder, functools._lru_cache_wrapper):
            holder.cache_clear()
            cleared = True
        elif depth > 1 and type(holder) in (tuple, list, dict) and not _is_namespace(holder):
            cleared = _clear_function_caches(holder, depth - 1) or cleared
    return cleared


def _remove(holder: object, value: object) -> None:
    """Remove a value from a dict, a namespace, or an object."""
    if isinstance(holder, dict):
        entries = cast("dict[Any, Any]", holder)
        for key in [key for key, each in entries.items() if each is value]:
            if _is_namespace(entries):
                entries[key] = None
            else:
                del entries[key]
        return
    attributes: Any = getattr(holder, "__dict__", None)
    if isinstance(attributes, dict):  # since Python 3.11, objects refer to their attributes themselves
        for name in [name for name, each in cast("dict[str, Any]", attributes).items() if each is value]:
            setattr(holder, name, None)


def _is_namespace(entries: object) -> bool:
    """Return whether a dict holds the attributes of an object, or the global variables of a module."""
    return any(getattr(each, "__dict__", None) is entries for each in gc.get_referrers(entries))
