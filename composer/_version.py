"""The version, in the one place that packaging and code both read."""

from __future__ import annotations

__all__ = ["__version__"]

__version__ = "1.0.0.dev0"
