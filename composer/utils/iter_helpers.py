"""One or several, under the name that scripts import; see :mod:`composer.trees`."""

from __future__ import annotations

from composer.trees import ensure_tuple, map_collection

__all__ = ["ensure_tuple", "map_collection"]
