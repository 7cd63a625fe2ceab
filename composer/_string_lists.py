"""Check arguments that are lists of strings: one string in place of a list would be a list of letters."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import cast

__all__ = ["as_strings", "no_string"]


def no_string(argument: str, value: object) -> None:
    """Raise if a string is given in place of a list of strings, which would be one of letters.

    Args:
        argument: Name of the argument, for the message.
        value: The given value.

    Raises:
        TypeError: It is a string.

    >>> no_string("methods", "EMA")
    Traceback (most recent call last):
    ...
    TypeError: methods must be a list of strings, but got 'EMA'; write ['EMA'].
    """
    if isinstance(value, str):
        raise TypeError(f"{argument} must be a list of strings, but got {value!r}; write [{value!r}].")


def as_strings(argument: str, values: object) -> tuple[str, ...]:
    """Return strings as a tuple, which can be read more than once, as a generator cannot.

    Args:
        argument: Name of the argument, for the message.
        values: The given value: any iterable of strings but a string or a mapping, whose values would be dropped.

    Raises:
        TypeError: It is anything else.

    >>> as_strings("keep", (key for key in ["input_ids", "labels"]))
    ('input_ids', 'labels')
    """
    no_string(argument, values)
    if isinstance(values, Mapping) or not isinstance(values, Iterable):
        raise TypeError(f"{argument} must be a list of strings, but got {values!r}. Pass a list, such as ['a', 'b'].")
    found = tuple(cast("Iterable[object]", values))
    for one in found:
        if not isinstance(one, str):
            raise TypeError(f"{argument} must be a list of strings, but contains {one!r}. Pass names only.")
    return cast("tuple[str, ...]", found)
