"""Parts of batches, under the name that scripts import; see :mod:`composer.trees`."""

from __future__ import annotations

from composer.trees import batch_get, batch_set

__all__ = ["batch_get", "batch_set"]
