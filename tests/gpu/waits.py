"""Which methods wait for the device in steps in which nothing is logged."""

from __future__ import annotations

WAITS: dict[str, str] = {"PostHocEMA": "its case copies a snapshot to the host after each step, as it is told to"}
"""The method, and why."""
