"""Older home of :class:`.DataSpec`."""

from __future__ import annotations

from composer.core.data import DataSpec, ensure_data_spec

__all__ = ["DataSpec", "ensure_data_spec"]
