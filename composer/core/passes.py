"""Older home of the order in which algorithms run; see :mod:`composer.core.order`."""

from __future__ import annotations

from composer.core.order import AlgorithmPass, sort_to_back, sort_to_front

__all__ = ["AlgorithmPass", "sort_to_back", "sort_to_front"]
