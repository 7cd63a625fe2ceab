"""Copy containers (lists, tuples, mappings, dataclasses) with some elements replaced, and keep their type."""

from __future__ import annotations

import copy
import dataclasses
from collections import UserList, deque
from collections.abc import Mapping
from typing import Any

__all__ = ["SEQUENCES", "is_mapping", "is_sequence", "rebuild", "with_attributes", "with_items"]

SEQUENCES = (tuple, list, deque, UserList)
"""Sequence types whose elements are traversed. Others, such as lazy datasets and ranges, are leaves."""


def is_sequence(tree: Any) -> bool:
    """Return whether an object is a sequence to traverse; unlike ``isinstance``, this does not narrow its type.

    Args:
        tree: Any object.

    >>> is_sequence([]), is_sequence("text")
    (True, False)
    """
    return isinstance(tree, SEQUENCES)


def is_mapping(tree: Any) -> bool:
    """Return whether an object is a mapping; unlike ``isinstance``, this does not narrow its type.

    Args:
        tree: Any object.

    >>> is_mapping({}), is_mapping([])
    (True, False)
    """
    cls = type(tree)  # the usual batches first, since the check of an abstract class takes long
    return cls is dict or (cls is not tuple and cls is not list and isinstance(tree, Mapping))


def with_items(pairs: Mapping[Any, Any], changes: Mapping[Any, Any]) -> Any:
    """Return a copy of a mapping with some items replaced.

    Args:
        pairs: The mapping; a type that cannot be copied and set gives a plain dict.
        changes: The new items.

    >>> with_items({"x": 1, "y": 2}, {"y": 3})
    {'x': 1, 'y': 3}
    """
    if type(pairs) is dict:
        return {**pairs, **changes}
    try:
        result: Any = copy.copy(pairs)
        for key, value in changes.items():
            result[key] = value
    except TypeError:
        return {**pairs, **changes}
    return result


def with_attributes(obj: Any, changes: Mapping[str, Any]) -> Any:
    """Return a shallow copy of an object with some attributes replaced, or the object itself if there are none.

    Args:
        obj: Any object that can be copied; a frozen dataclass too.
        changes: The new attributes.

    Raises:
        RuntimeError: An attribute cannot be set.

    >>> import types
    >>> with_attributes(types.SimpleNamespace(x=1, y=2), {"y": 3})
    namespace(x=1, y=3)
    """
    if not changes:
        return obj
    result = copy.copy(obj)
    # Nobody else has the copy of a frozen dataclass yet, so it is safe to set its attributes.
    assign = object.__setattr__ if dataclasses.is_dataclass(obj) else setattr
    for name, value in changes.items():
        try:
            assign(result, name, value)
        except (AttributeError, TypeError) as error:
            raise RuntimeError(f"Cannot set {name!r} in an object of type {type(obj).__name__}: {error}.") from error
    return result


def rebuild(like: Any, parts: list[Any]) -> Any:
    """Return a sequence of the same type as another.

    Args:
        like: A list, tuple, named tuple, deque or another type in :data:`SEQUENCES`.
        parts: The elements.

    >>> rebuild((1, 2), [3, 4])
    (3, 4)
    """
    container_type = type(like)
    if container_type is list:
        return parts
    if hasattr(container_type, "_make"):
        return container_type._make(parts)
    if container_type is deque:
        return deque(parts, like.maxlen)
    try:
        return container_type(parts)
    except TypeError:
        return tuple(parts) if isinstance(like, tuple) else parts
