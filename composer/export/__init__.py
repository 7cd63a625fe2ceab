"""Export trained models for inference (deployment): TorchScript, ONNX, torch.export; int8 quantization.

Modules in reading order: ``inference`` exports a model, ``of_run`` the model of a run with its EMA weights, ``formats``
writes each format, ``samples`` handles sample inputs and dynamic shapes, ``quantize`` has transforms to 8 bits.
"""

from __future__ import annotations

from composer.export.formats import ExportFormat
from composer.export.inference import Transform, export_for_inference, export_with_logger
from composer.export.of_run import evaluation_weights, export_of_run
from composer.export.quantize import quantize_dynamic, quantize_int8

__all__ = [
    "ExportFormat",
    "Transform",
    "evaluation_weights",
    "export_for_inference",
    "export_of_run",
    "export_with_logger",
    "quantize_dynamic",
    "quantize_int8",
]
