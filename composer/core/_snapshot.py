"""Copy logged values, which a destination may write long after the call."""

from __future__ import annotations

import array
import collections
import copy
import dataclasses
from collections.abc import Mapping, MutableSequence, MutableSet
from typing import Any, cast

import numpy as np
from torch import Tensor

from composer._containers import PLAIN

__all__ = ["snapshot"]


def snapshot(value: Any) -> Any:
    """Copy mappings, lists, sets, dataclasses, tensors and arrays at any depth; keep other objects, which may be large.

    Args:
        value: Any value. Mappings become plain dicts, and lists of other classes plain lists.

    >>> rows = [[1, {"a"}], [2, set()]]
    >>> copied = snapshot(rows)
    >>> rows[1][1].add("b")
    >>> copied
    [[1, {'a'}], [2, set()]]
    """
    return _copied(value, ())


def _copied(value: Any, inside: tuple[int, ...]) -> Any:
    """Copy a value that is inside of containers with some ids."""
    # Before the checks for abstract classes, which take longer.
    if type(value) in PLAIN or isinstance(value, np.generic) or id(value) in inside:
        return value
    if isinstance(value, Tensor):
        return value.detach().clone()
    if isinstance(value, np.ndarray):
        return copy.deepcopy(value) if value.dtype.hasobject else value.copy()
    if isinstance(value, (bytearray, array.array)):
        return value[:]
    inside = (*inside, id(value))
    if isinstance(value, Mapping):
        return {key: _copied(entry, inside) for key, entry in cast("Mapping[Any, Any]", value).items()}
    if isinstance(value, (tuple, MutableSequence)):
        return _copied_sequence(cast("tuple[Any, ...] | MutableSequence[Any]", value), inside)
    if isinstance(value, MutableSet):
        return set(cast("MutableSet[Any]", value))
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        made = copy.copy(value)
        for field in dataclasses.fields(value):
            if hasattr(value, field.name):
                object.__setattr__(made, field.name, _copied(getattr(value, field.name), inside))
        return made
    return value


def _copied_sequence(value: tuple[Any, ...] | MutableSequence[Any], inside: tuple[int, ...]) -> Any:
    parts = [_copied(entry, inside) for entry in value]
    if isinstance(value, collections.deque):
        return collections.deque(parts, value.maxlen)
    if not isinstance(value, tuple):
        return parts
    if all(new is old for new, old in zip(parts, value, strict=True)):
        return value
    return cast("Any", type(value))._make(parts) if hasattr(value, "_fields") else tuple(parts)
