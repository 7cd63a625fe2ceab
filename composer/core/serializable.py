"""Older home of :class:`.Serializable`."""

from __future__ import annotations

from composer.core.serial import Serializable

__all__ = ["Serializable"]
