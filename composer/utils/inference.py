"""Exporting models, under the name that scripts import; see :mod:`composer.export`."""

from __future__ import annotations

from composer.export import (
    ExportFormat,
    Transform,
    export_for_inference,
    export_with_logger,
    quantize_dynamic,
)

__all__ = ["ExportFormat", "Transform", "export_for_inference", "export_with_logger", "quantize_dynamic"]
