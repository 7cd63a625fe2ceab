"""Trying again, under the name that scripts import; see :mod:`composer.storage.retrying`."""

from __future__ import annotations

from composer.storage.retrying import retry

__all__ = ["retry"]
