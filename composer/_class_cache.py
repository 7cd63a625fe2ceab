"""Cache the result of a function for each class, without keeping the class alive."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable
from typing import Any, TypeVar

__all__ = ["cached_by_class"]

Found = TypeVar("Found")
_MISSING: Any = object()


def cached_by_class(function: Callable[[type[Any]], Found]) -> Callable[[type[Any]], Found]:
    """Return a function that caches its result for each class, without keeping the class alive.

    ``functools.cache`` would keep the class forever, and with it everything that its methods refer to: for a class
    defined in a function, perhaps a model with all its weights.

    Args:
        function: The function; its result must not refer to the class.

    >>> @cached_by_class
    ... def shout(cls: type) -> str:
    ...     print("looking")
    ...     return cls.__name__.upper()
    >>> shout(int), shout(int)
    looking
    ('INT', 'INT')
    """
    # Keyed by id, since weak references take ten times as long to look up; an entry is removed before its id is reused.
    known: dict[int, Found] = {}

    @functools.wraps(function)
    def lookup(cls: type[Any]) -> Found:
        found: Any = known.get(id(cls), _MISSING)
        if found is _MISSING:
            found = known[id(cls)] = function(cls)
            weakref.finalize(cls, known.pop, id(cls), None).atexit = False
        return found

    return lookup
