"""Remembering what was found out about a class, for as long as the class lives."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable
from typing import Any, TypeVar

__all__ = ["cached_by_class"]

Found = TypeVar("Found")
_MISSING: Any = object()


def cached_by_class(function: Callable[[type[Any]], Found]) -> Callable[[type[Any]], Found]:
    """Call a function once for each class, and do not keep the class.

    ``functools.cache`` would keep it forever, and with it what its methods refer to: for a class that is defined within
    a function, perhaps a model with all its weights.

    Args:
        function: What to call; its result must not refer to the class.

    >>> @cached_by_class
    ... def shout(cls: type) -> str:
    ...     print("looking")
    ...     return cls.__name__.upper()
    >>> shout(int), shout(int)
    looking
    ('INT', 'INT')
    """
    # By number, as weak references take ten times as long to look up; one leaves before its number is given out again.
    known: dict[int, Found] = {}

    @functools.wraps(function)
    def look(cls: type[Any]) -> Found:
        found: Any = known.get(id(cls), _MISSING)
        if found is _MISSING:
            found = known[id(cls)] = function(cls)
            weakref.finalize(cls, known.pop, id(cls), None).atexit = False
        return found

    return look
