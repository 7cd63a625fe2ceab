"""Optional packages, and objects by their names, under the name that scripts import."""

from __future__ import annotations

from composer._lazy import MissingConditionalImportError, import_object

__all__ = ["MissingConditionalImportError", "import_object"]
