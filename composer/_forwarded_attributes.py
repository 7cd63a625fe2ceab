"""Attributes of an object that one of its parts keeps."""

from __future__ import annotations

from typing import Any

__all__ = ["Forwarded"]


class Forwarded:
    """An attribute that reads and writes the attribute of a part.

    Args:
        part: Name of the attribute that holds the part.
        name: Name of the part's attribute; that of this one by default.

    >>> class Engine:
    ...     power = 75
    >>> class Car:
    ...     power = Forwarded("engine")
    ...
    ...     def __init__(self):
    ...         self.engine = Engine()
    >>> car = Car()
    >>> car.power = 90
    >>> car.engine.power
    90
    """

    def __init__(self, part: str, name: str = "") -> None:
        self._part, self._name = part, name

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = self._name or name

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        return self if instance is None else getattr(getattr(instance, self._part), self._name)

    def __set__(self, instance: Any, value: Any) -> None:
        setattr(getattr(instance, self._part), self._name, value)
