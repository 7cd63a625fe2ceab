"""Optional packages, under the name that scripts import."""

from __future__ import annotations

from composer._lazy import MissingConditionalImportError

__all__ = ["MissingConditionalImportError"]
