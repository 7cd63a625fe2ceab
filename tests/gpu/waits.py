"""Which methods wait for the device in steps in which nothing is logged."""

from __future__ import annotations

WAITS: dict[str, str] = {}
"""The method, and why."""
