"""The version and the distribution name, read by packaging and code."""

from __future__ import annotations

__all__ = ["DISTRIBUTION", "__version__"]

# `composer` and `mosaicml` on PyPI are MosaicML Composer.
DISTRIBUTION = "composer-torch"

__version__ = "1.0.0.dev0"
