"""The version and the name on the package index, in the one place that packaging and code both read."""

from __future__ import annotations

__all__ = ["DISTRIBUTION", "__version__"]

# `composer` and `mosaicml` on the index are MosaicML Composer.
DISTRIBUTION = "composer-torch"

__version__ = "1.0.0.dev0"
