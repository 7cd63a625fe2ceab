"""Older home of :func:`.cyclic_schedule`."""

from __future__ import annotations

from composer.profiler.schedule import cyclic_schedule

__all__ = ["cyclic_schedule"]
