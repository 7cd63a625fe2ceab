"""What can be saved and loaded."""

from __future__ import annotations

from typing import Any

__all__ = ["Serializable"]


class Serializable:
    """State that a checkpoint keeps: override both methods together.

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
        """Return what is to be saved: tensors, numbers, strings and containers of them."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over what :meth:`state_dict` returned.

        Args:
            state: The saved values.
        """

    def __is_own_state__(self, state: dict[str, Any]) -> bool:
        """Tell whether a state was saved by this very object, where a run has several of a class.

        Of objects that cannot tell, the second gets the second state, and so on.

        Args:
            state: What :meth:`state_dict` of one of them returned.

        >>> Serializable().__is_own_state__({})
        False
        """
        return False
