"""A list that tells when it changes."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, SupportsIndex, TypeVar

__all__ = ["WatchedList"]

T = TypeVar("T")


class WatchedList(list[T]):
    """A list that calls a function after each change of its items or their order.

    An exception of that function refuses the change: the list is as before. Copies and pickles are plain lists.

    Args:
        items: The first items.
        notify: Called without arguments.

    >>> items = WatchedList([1], lambda: print("changed"))
    >>> items.append(2)
    changed
    """

    def __init__(self, items: Iterable[T], notify: Callable[[], object]) -> None:
        super().__init__(items)
        self._notify = notify

    def __reduce__(self) -> tuple[type[list[T]], tuple[list[T]]]:
        return list, (list(self),)

    def __setitem__(self, index: Any, value: Any) -> None:
        items = list(self)
        items[index] = value
        self._become(items)

    def __delitem__(self, index: SupportsIndex | slice) -> None:
        items = list(self)
        del items[index]
        self._become(items)

    def __iadd__(self, items: Iterable[T]) -> WatchedList[T]:  # pyright: ignore[reportIncompatibleMethodOverride]
        self.extend(items)
        return self

    def __imul__(self, count: SupportsIndex) -> WatchedList[T]:
        self._become(list(self) * count)
        return self

    def append(self, item: T) -> None:
        self._become([*self, item])

    def extend(self, items: Iterable[T]) -> None:
        self._become([*self, *items])

    def insert(self, index: SupportsIndex, item: T) -> None:
        items = list(self)
        items.insert(index, item)
        self._become(items)

    def remove(self, item: T) -> None:
        items = list(self)
        items.remove(item)
        self._become(items)

    def pop(self, index: SupportsIndex = -1) -> T:
        items = list(self)
        item = items.pop(index)
        self._become(items)
        return item

    def clear(self) -> None:
        self._become([])

    def sort(self, **how: Any) -> None:
        items = list(self)
        items.sort(**how)
        self._become(items)

    def reverse(self) -> None:
        self._become(self[::-1])

    def _become(self, items: list[T]) -> None:
        """Change to these items if whoever is told does not object."""
        before = list(self)
        super().__setitem__(slice(None), items)
        try:
            self._notify()
        except BaseException:
            super().__setitem__(slice(None), before)
            raise
