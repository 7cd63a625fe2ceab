"""Serializable: the ``state_dict`` interface of objects whose state is saved in checkpoints."""

from __future__ import annotations

from typing import Any

__all__ = ["Serializable"]


class Serializable:
    """An object whose state is saved in checkpoints: override both methods together.

    >>> class Counter(Serializable):
    ...     count = 0
    ...
    ...     def state_dict(self):
    ...         return {"count": self.count}
    ...
    ...     def load_state_dict(self, state):
    ...         self.count = state["count"]
    >>> restored = Counter()
    >>> restored.load_state_dict({"count": 3})
    >>> restored.count
    3
    """

    def state_dict(self) -> dict[str, Any]:
        """Return the state to save: tensors, numbers, strings and containers of them."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Load the result of :meth:`state_dict`.

        Args:
            state: The saved values.
        """

    def __is_own_state__(self, state: dict[str, Any]) -> bool:
        """Return whether a saved state belongs to this object, if a run has several objects of a class.

        Objects that return false are matched by position: the second object loads the second state.

        Args:
            state: The saved :meth:`state_dict` of one of them.

        >>> Serializable().__is_own_state__({})
        False
        """
        return False
