"""Metric values by name that follow the metrics, and keep values that a script sets."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

__all__ = ["MetricValues"]


class MetricValues:
    """A dictionary of computed metric values, in which a script may also set values.

    >>> values = MetricValues()
    >>> accuracy = 0.5
    >>> values.refresh({"Accuracy": accuracy})["Accuracy"] = 0.9
    >>> values.refresh({"Accuracy": accuracy})
    {'Accuracy': 0.9}
    >>> values.refresh({"Accuracy": 0.6})
    {'Accuracy': 0.6}
    """

    def __init__(self) -> None:
        self._values: dict[str, Any] = {}
        self._computed: dict[str, Any] = {}

    def refresh(self, computed: Mapping[str, Any]) -> dict[str, Any]:
        """Update and return the dictionary, always the same object, with new values of the metrics.

        A metric that was not updated returns the same object as before, so that a value set by a script is kept.

        Args:
            computed: Values by name; values of removed metrics are removed.
        """
        for name in self._computed.keys() - computed.keys():
            if self._values.get(name) is self._computed[name]:
                del self._values[name]
        for name, value in computed.items():
            if name not in self._computed or self._computed[name] is not value:
                self._values[name] = value
        self._computed = dict(computed)
        return self._values

    def replace(self, values: dict[str, Any]) -> None:
        """Replace the dictionary by that of a script.

        Args:
            values: Values by name.
        """
        self._values = values
