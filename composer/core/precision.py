"""Older home of :class:`.Precision`."""

from __future__ import annotations

from composer.precision import Precision, get_precision_context

__all__ = ["Precision", "get_precision_context"]
