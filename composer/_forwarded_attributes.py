"""A descriptor that forwards an attribute to an attribute of a contained object."""

from __future__ import annotations

from typing import Any

__all__ = ["Forwarded"]


class Forwarded:
    """An attribute that reads and writes an attribute of a contained object.

    Args:
        part: Name of the attribute that holds the contained object.
        name: Name of the attribute of the contained object; by default the same name.

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
        self._holder, self._name = part, name

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = self._name or name

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        return self if instance is None else getattr(getattr(instance, self._holder), self._name)

    def __set__(self, instance: Any, value: Any) -> None:
        setattr(getattr(instance, self._holder), self._name, value)
