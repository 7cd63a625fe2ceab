"""Copies of containers with some parts replaced, each of its own kind."""

from __future__ import annotations

import copy
import dataclasses
from collections import UserList, deque
from collections.abc import Mapping
from typing import Any

__all__ = ["SEQUENCES", "is_mapping", "is_sequence", "rebuild", "with_attributes", "with_items"]

SEQUENCES = (tuple, list, deque, UserList)
"""Sequences that hold parts. Others, such as lazy datasets and ranges, are not looked into."""


def is_sequence(tree: Any) -> bool:
    """Return whether something is a sequence that holds parts; to a type checker it keeps its exact type.

    Args:
        tree: Anything.

    >>> is_sequence([]), is_sequence("text")
    (True, False)
    """
    return isinstance(tree, SEQUENCES)


def is_mapping(tree: Any) -> bool:
    """Return whether something is a mapping; to a type checker it keeps its exact type.

    Args:
        tree: Anything.

    >>> is_mapping({}), is_mapping([])
    (True, False)
    """
    return isinstance(tree, Mapping)


def with_items(pairs: Mapping[Any, Any], changes: Mapping[Any, Any]) -> Any:
    """Return a copy of a mapping with some items replaced.

    Args:
        pairs: The mapping; a kind that cannot be copied and set gives a plain dict.
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
        RuntimeError: The object does not let an attribute be set.

    >>> import types
    >>> with_attributes(types.SimpleNamespace(x=1, y=2), {"y": 3})
    namespace(x=1, y=3)
    """
    if not changes:
        return obj
    result = copy.copy(obj)
    # The copy of a frozen dataclass is nobody else's yet, so filling it in breaks no promise.
    assign = object.__setattr__ if dataclasses.is_dataclass(obj) else setattr
    for name, value in changes.items():
        try:
            assign(result, name, value)
        except (AttributeError, TypeError) as error:
            raise RuntimeError(f"Cannot set {name!r} in an object of type {type(obj).__name__}: {error}.") from error
    return result


def rebuild(like: Any, parts: list[Any]) -> Any:
    """Return a sequence of the kind of another.

    Args:
        like: A list, tuple, named tuple, deque or another sequence of known kind.
        parts: The elements.

    >>> rebuild((1, 2), [3, 4])
    (3, 4)
    """
    kind = type(like)
    if kind is list:
        return parts
    if hasattr(kind, "_make"):
        return kind._make(parts)
    if kind is deque:
        return deque(parts, like.maxlen)
    try:
        return kind(parts)
    except TypeError:
        return tuple(parts) if isinstance(like, tuple) else parts
