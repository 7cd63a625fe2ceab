"""Validate numbers given as arguments: of the right kind, and within their range."""

from __future__ import annotations

import numbers
import operator
from typing import Any, SupportsFloat, TypeVar

__all__ = ["as_integer", "in_unit_interval", "non_negative", "positive", "real_number", "whole_number"]

Number = TypeVar("Number", int, float)


def as_integer(value: object) -> int | None:
    """Return an integer (Python, NumPy or a scalar tensor) as ``int``; None for anything else.

    Args:
        value: The given value. A boolean does not count as an integer.

    >>> as_integer(3), as_integer(torch.tensor(3)), as_integer(True), as_integer(3.0)
    (3, 3, None, None)
    """
    if type(value) is int:
        return value
    if _is_boolean(value):
        return None
    try:
        return operator.index(value)  # pyright: ignore[reportArgumentType]
    except TypeError:
        return None


def whole_number(argument: str, value: object, minimum: int | None = 0) -> int:
    """Return a count as ``int``; a float without a fraction counts as an integer, since configurations write 1e3.

    Args:
        argument: Name of the argument, for the message.
        value: The given value: an integer of Python or NumPy, a scalar tensor of integers, or a whole float.
        minimum: The smallest allowed value, or None for any.

    Raises:
        TypeError: ``value`` is anything else: a float with a fraction, infinity, NaN, a boolean or a string.
        ValueError: ``value`` is less than ``minimum``.

    >>> whole_number("depth", 3), whole_number("num_steps", 1e3)
    (3, 1000)
    >>> whole_number("depth", 2.5)
    Traceback (most recent call last):
    ...
    TypeError: depth must be an integer, but got 2.5 of type float. Pass a whole number, such as 1.
    """
    number = as_integer(value)
    if number is None and isinstance(value, numbers.Real) and not isinstance(value, bool):
        given = float(value)
        number = int(given) if given.is_integer() else None
    if number is None:
        example = max(1, minimum or 0)
        raise TypeError(
            f"{argument} must be an integer, but got {value!r} of type {type(value).__name__}. Pass a whole number, "
            f"such as {example}."
        )
    if minimum is not None and number < minimum:
        least = "greater than 0" if minimum == 1 else f"{minimum} or greater"
        raise ValueError(f"{argument} must be {least}, but got {value!r}.")
    return number


def real_number(argument: str, value: object) -> float:
    """Return a number as ``float``, infinity and NaN included.

    Args:
        argument: Name of the argument, for the message.
        value: The given value: a number of Python or NumPy, or a scalar tensor.

    Raises:
        TypeError: ``value`` is not a number: a boolean or a string, for example.

    >>> real_number("threshold", 1)
    1.0
    >>> real_number("threshold", True)
    Traceback (most recent call last):
    ...
    TypeError: threshold must be a number, but got True of type bool.
    """
    return float(_checked_real(argument, value))


def in_unit_interval(argument: str, value: float) -> float:
    """Return ``value`` as a float if it is in [0, 1], both ends included.

    Args:
        argument: Name of the argument, for the message.
        value: The number to check.

    Raises:
        TypeError: ``value`` is not a number.
        ValueError: ``value`` is outside the interval, or NaN.

    >>> in_unit_interval("smoothing", 0.1)
    0.1
    """
    number = real_number(argument, value)
    if not 0.0 <= number <= 1.0:
        raise ValueError(f"{argument} must be between 0 and 1 (both included), but got {value!r}.")
    return number


def positive(argument: str, value: Number) -> Number:
    """Return ``value`` if it is greater than zero (infinity is allowed).

    Args:
        argument: Name of the argument, for the message.
        value: The number to check; it keeps its type.

    Raises:
        TypeError: ``value`` is not a number.
        ValueError: ``value`` is zero, negative or NaN.

    >>> positive("alpha", 3)
    3
    """
    if not _checked_real(argument, value) > 0:
        raise ValueError(f"{argument} must be greater than 0, but got {value!r}.")
    return value


def non_negative(argument: str, value: Number) -> Number:
    """Return ``value`` if it is zero or greater (infinity is allowed).

    Args:
        argument: Name of the argument, for the message.
        value: The number to check; it keeps its type.

    Raises:
        TypeError: ``value`` is not a number.
        ValueError: ``value`` is negative or NaN.

    >>> non_negative("weight_decay", 0.0)
    0.0
    """
    if not _checked_real(argument, value) >= 0:
        raise ValueError(f"{argument} must be 0 or greater, but got {value!r}.")
    return value


def _is_boolean(value: object) -> bool:
    # NumPy's booleans and those of tensors are not subclasses of bool.
    return isinstance(value, bool) or "bool" in str(getattr(value, "dtype", ""))


def _checked_real(argument: str, value: Any) -> Any:
    """Return ``value``, of the same type, if it is a real number; reject booleans and strings."""
    # Python accepts a boolean as 0 or 1, but here it is always an argument in the wrong position.
    if type(value) in (float, int):
        return value  # a protocol check takes ten times as long
    if _is_boolean(value) or not isinstance(value, SupportsFloat):
        raise TypeError(f"{argument} must be a number, but got {value!r} of type {type(value).__name__}.")
    return value
