"""Metric values by name, which follow the metrics and keep what a script writes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

__all__ = ["MetricValues"]


class MetricValues:
    """A dictionary of what metrics compute, in which a script may set values too.

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
        """Return the dictionary, always the same, with new values of the metrics.

        A metric that was not updated returns the object that it returned before, and what was set in its place stays.

        Args:
            computed: By name; what metrics that are gone have left goes too.
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
        """Take a dictionary of a script's own in place of this one.

        Args:
            values: By name.
        """
        self._values = values
