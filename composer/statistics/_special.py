"""Quantiles and distribution functions of SciPy, imported when they are needed."""

from __future__ import annotations

import functools
from typing import Any

from composer._lazy import import_extra

__all__ = ["special"]


@functools.cache
def special() -> Any:
    """Return ``scipy.special``, or raise an error that names the extra that installs it."""
    return import_extra("scipy.special", "explore", "The comparison of runs")
