"""Older home of :class:`.ProfilerAction`."""

from __future__ import annotations

from composer.profiler.schedule import ProfilerAction

__all__ = ["ProfilerAction"]
