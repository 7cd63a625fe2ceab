"""A list subclass that calls a function after each change, and reverts the change if the function raises."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, SupportsIndex, TypeVar

__all__ = ["WatchedList"]

T = TypeVar("T")


class WatchedList(list[T]):
    """A list that calls a function after each change of its items or their order.

    If the function raises an exception, the change is reverted. Copies and pickles are plain lists.

    Args:
        items: The initial items.
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
        self._replace_items(items)

    def __delitem__(self, index: SupportsIndex | slice) -> None:
        items = list(self)
        del items[index]
        self._replace_items(items)

    def __iadd__(self, items: Iterable[T]) -> WatchedList[T]:  # pyright: ignore[reportIncompatibleMethodOverride]
        self.extend(items)
        return self

    def __imul__(self, count: SupportsIndex) -> WatchedList[T]:
        self._replace_items(list(self) * count)
        return self

    def append(self, item: T) -> None:
        self._replace_items([*self, item])

    def extend(self, items: Iterable[T]) -> None:
        self._replace_items([*self, *items])

    def insert(self, index: SupportsIndex, item: T) -> None:
        items = list(self)
        items.insert(index, item)
        self._replace_items(items)

    def remove(self, item: T) -> None:
        items = list(self)
        items.remove(item)
        self._replace_items(items)

    def pop(self, index: SupportsIndex = -1) -> T:
        items = list(self)
        item = items.pop(index)
        self._replace_items(items)
        return item

    def clear(self) -> None:
        self._replace_items([])

    def sort(self, **how: Any) -> None:
        items = list(self)
        items.sort(**how)
        self._replace_items(items)

    def reverse(self) -> None:
        self._replace_items(self[::-1])

    def _replace_items(self, items: list[T]) -> None:
        """Replace the items, and revert if the function raises."""
        before = list(self)
        super().__setitem__(slice(None), items)
        try:
            self._notify()
        except BaseException:
            super().__setitem__(slice(None), before)
            raise
